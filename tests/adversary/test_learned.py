"""Attacks that learn from public examples: ridge regression, and the most likely image of a class."""

import dataclasses

import pytest
import torch

import adversary
from adversary import AttackError, Facts, Public
from adversary.base import LEAST_PUBLIC
from adversary.informed.noise import NoiseLaw, law_of
from adversary.informed.refiner import cleaned
from adversary.learned.ridge import Ridge, fitted
from adversary.spaces import ClassGaussian
from client_defenses import Memory, build
from fl_app import data
from fl_app.core.local import Step, local_update
from fl_app.core.observation import Knowledge
from helpers.attacks import digits, psnr, seen_of

PUBLIC = 600


@pytest.fixture(scope="module")
def public():
    return Public(*data.load("mnist").test.at(slice(0, PUBLIC)))  # the targets are of the training part


def told(seen, task, x, y, defense):
    built = build(defense)
    return [
        dataclasses.replace(
            one,
            update=built.protect(Step(one.params, task.model, a, b), Memory.fresh(number)),
            knowledge=Knowledge(defense=defense),
        )
        for number, (one, a, b) in enumerate(zip(seen, x, y, strict=True))
    ]


def attackers(defense, **facts):
    found = adversary.build("cosine_lbfgs(iterations=100)").informed(defense, Facts(public=PUBLIC, **facts))
    return {one.name: one.attack for one in found}


def floor(public, y):
    means = torch.stack([public.x[public.y == label].mean(0) for label in range(10)])
    return means[y]


def test_ridge_learns_through_a_defense_that_no_search_can_follow(public, tmp_path):
    x, y = digits(6, 1, start=2000)
    seen, task = seen_of(x, y)
    seen = told(seen, task, x, y, "sign")
    ridge = attackers("sign")["ridge"].prepare(task, seen[0], public, 0, tmp_path)
    assert psnr(ridge(seen, task, 0).x, x).mean() > psnr(floor(public, y), x).mean() + 1
    (kept,) = tmp_path.iterdir()
    stamp = kept.stat().st_mtime_ns
    again = attackers("sign")["ridge"].prepare(task, seen[0], public, 0, tmp_path)
    assert kept.stat().st_mtime_ns == stamp  # by what it was made of, it is there already
    assert torch.equal(again(seen, task, 0).x, ridge(seen, task, 0).x)
    adversary.build("ridge").prepare(task, dataclasses.replace(seen[0], knowledge=Knowledge()), public, 0, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2  # learned without the defense, it is another


def test_the_most_likely_image_is_never_worse_than_its_class(public, tmp_path):
    """Noise in which a search drowns: the prior holds it at the class mean, and what the update says moves it from there."""
    x, y = digits(6, 1, start=2100)
    seen, task = seen_of(x, y)
    for defense, gain in (("dp_sgd(noise=0.1)", -0.3), ("dp_sgd(noise=0.01)", 2.0), ("dp_laplace(scale=0.01)", 1.0)):
        noisy = told(seen, task, x, y, defense)
        likely = attackers(defense)["most likely"].prepare(task, noisy[0], public, 0, tmp_path)
        guess = likely(noisy, task, 0)
        assert psnr(guess.x, x).mean() > psnr(floor(public, guess.y), x).mean() + gain, defense


@pytest.mark.parametrize("defense", ["sign", "quantize(bits=2)", "prune(ratio=0.99)"])
def test_the_most_likely_image_within_the_intervals_that_were_sent(defense, public, tmp_path):
    x, y = digits(4, 1, start=2200)
    seen, task = seen_of(x, y)
    seen = told(seen, task, x, y, defense)
    guess = attackers(defense)["most likely"].prepare(task, seen[0], public, 0, tmp_path)(seen, task, 0)
    assert psnr(guess.x, x).mean() > psnr(floor(public, y), x).mean() + 3


def test_image_and_blended_noise_are_told_apart(public, tmp_path):
    """Refiner's robust data hardly leave the blend that they start from."""
    x, y = digits(3, 1, start=2300)
    blend = 0.5 * x + 0.5 * torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    seen, task = seen_of(blend, y, knowledge=Knowledge(defense="refiner"))
    guess = attackers("refiner")["most likely"].prepare(task, seen[0], public, 0, tmp_path)(seen, task, 0)
    assert psnr(guess.x, x).mean() > psnr(cleaned(blend, 0.5), x).mean() + 1  # which was even given the blend


def test_the_law_of_the_noise_is_that_of_the_defense(rng):
    g = {"w": torch.randn(300_000, generator=rng) / 300}
    for defense in ("dp_gaussian(scale=0.02)", "dp_laplace(scale=0.02)", "ppfa(budget=0.9)"):
        built = build(defense)
        law = law_of(built, Facts())
        sent = built.transform(g, Memory.fresh(1))
        true = law(g, sent, 0.0) / 300_000
        expected = 1.0 if law.law == "laplace" else 0.5  # E |u| of Laplace, E u² / 2 of a Gaussian
        assert true.item() == pytest.approx(expected, rel=0.02)
    assert law_of(build("prune"), Facts()) is None
    four = law_of(build("dp_sgd(noise=0.1)"), Facts(rounds=4, repeats=True))
    assert four == NoiseLaw(scale=0.05, clip=1.0)


def test_the_gaussian_is_that_of_public_examples(public):
    _, task = seen_of(*digits(1, 1))
    learned = ClassGaussian(components=60).learn(public, task)
    ones = public.x[public.y == 1].flatten(1)
    torch.testing.assert_close(learned["mean"][1], ones.mean(0), atol=1e-4, rtol=1e-4)
    spread = learned["basis"][1].square().sum(1) + learned["rest"][1].square()
    wanted = 0.9 * ones.var(0).sum() + 0.1 * learned["basis"][-1].square().sum()  # a tenth leans on all classes
    assert spread.sum().item() == pytest.approx(wanted.item(), rel=0.01)
    few = ClassGaussian(components=60).learn(Public(public.x[:1], public.y[:1]), task)
    assert few["basis"].isfinite().all()


def test_without_public_examples_there_is_nothing_to_learn_from():
    x, y = digits(1, 1)
    seen, task = seen_of(x, y)
    for text in ("ridge", "matching(space=class_gaussian)"):
        with pytest.raises(AttackError, match="learns from public examples first"):
            adversary.build(text)(seen, task, 0)
    few = adversary.build("cosine_lbfgs").informed("dp_sgd", Facts(public=30))
    assert [one.name for one in few if one.attack is None] == ["most likely"]
    assert "ridge" not in [one.name for one in few]
    with pytest.raises(AttackError, match="at least 500"):
        adversary.build("ridge").learn(task, seen[0], Public(x[0], y[0]), torch.Generator())


def test_both_systems_of_the_linear_map_have_the_same_answer():
    rng = torch.Generator().manual_seed(0)
    features, wanted = torch.randn(60, 40, generator=rng), torch.randn(60, 3, generator=rng)
    lifted = torch.cat([features, torch.zeros(60, 30)], 1)  # more features than examples, with nothing in them
    assert torch.allclose(fitted(features, wanted)["map"], fitted(lifted, wanted)["map"][:40], atol=1e-4)


def test_ridge_sees_each_tensor_in_units_of_its_size_and_maps_updates_to_examples():
    """The map is fitted to updates over sizes; of a tensor that never changes the size is next to nothing, not zero."""
    x, y = digits(LEAST_PUBLIC, 1)
    seen, task = seen_of(x[:2], y[:2], model_text="mlp(hidden=[6])")
    seen[0].params["fc1.bias"][:] = -100.0  # no neuron is ever on
    seen = [dataclasses.replace(one, params=seen[0].params) for one in seen]
    known = Public(x[:, 0], y[:, 0])
    learned = Ridge().learn(task, seen[0], known, torch.Generator())
    updates = [local_update(task.model, seen[0].params, a, b, seen[0].rule) for a, b in zip(x, y, strict=True)]
    for name in seen[0].update:
        size = torch.stack([one[name] for one in updates]).square().mean().sqrt()
        assert learned[f"size/{name}"].item() == pytest.approx(size.item(), abs=1e-11, rel=1e-4)
    assert learned["size/fc1.weight"] == pytest.approx(1e-12)
    ready = Ridge().taught(learned)
    given = [dataclasses.replace(one, update=updates[i]) for i, one in enumerate(seen)]
    guess = ready.run(given, task, [torch.Generator(), torch.Generator()])
    for i in range(2):
        flat = torch.cat([(value / learned[f"size/{name}"]).flatten() for name, value in updates[i].items()])
        found = (flat - learned["middle"]) @ learned["map"] + learned["mean"]
        torch.testing.assert_close(guess.x[i].flatten(), found)
        torch.testing.assert_close(guess.loss[i], (found - found.clamp(0, 1)).square().mean())
    assert guess.y[:, 0].tolist() == y[:2, 0].tolist()
