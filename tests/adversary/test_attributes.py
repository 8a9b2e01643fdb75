"""Attributes, properties and labels from updates: what follows from an undefended one, and what a defense changes."""

import itertools

import pytest
import torch

import adversary
from adversary import AttackError, Public
from adversary.inference.attribute import explained
from adversary.inference.property import drawn
from adversary.inference.updates import ridge
from adversary.informed.simulate import through
from fl_app.core.local import Step
from fl_app.core.observation import Candidates, Knowledge
from helpers.rows import ROWS, scene


def asked(batch, column="job", **settings):
    """Targets whose rows are known up to a column."""
    x, y, seen, task = scene(batch, **settings)
    for one, rows, classes in zip(seen, x, y, strict=True):
        filled = ROWS.filled(rows, column)
        about = Candidates(filled.flatten(0, 1), classes.repeat_interleave(filled.shape[1]))
        object.__setattr__(one, "knowledge", Knowledge(candidates=about))
    places = ROWS.cells(x)[..., [one.name for one in ROWS.columns].index(column)].long()
    return places, seen, task


@pytest.mark.parametrize("batch", [1, 8])
def test_the_attribute_of_every_row_follows_from_an_undefended_update(batch):
    places, seen, task = asked(batch)
    scores = adversary.build("attribute(column=job)")(seen, task, 0).scores
    assert torch.equal(scores.view(2, batch, 3).argmax(-1), places)
    assert scores.max() == pytest.approx(1, abs=1e-4)


def test_scores_are_the_best_matches_of_all_choices(rng):
    """Four rows of three values: every choice by hand."""
    tried, truth = torch.randn(12, 40, generator=rng), torch.tensor([2, 0, 1, 1])
    update = tried.view(4, 3, 40)[torch.arange(4), truth].mean(0)
    found = explained(tried @ update, tried @ tried.T, 4).view(4, 3) / update.norm()
    best = torch.full((4, 3), -1.0)
    for choice in itertools.product(range(3), repeat=4):
        if sum(a != b for a, b in zip(choice, truth.tolist(), strict=True)) > 1:
            continue  # a score leaves the others at their best
        total = tried.view(4, 3, 40)[torch.arange(4), torch.tensor(choice)].sum(0)
        match = torch.cosine_similarity(total, update, dim=0)
        for row, value in enumerate(choice):
            if all(choice[i] == truth[i] for i in range(4) if i != row):
                best[row, value] = max(best[row, value], match)
    assert torch.allclose(found, best, atol=1e-5)


def test_noise_hides_the_attribute():
    places, seen, task = asked(4, targets=20)
    for one in seen:
        size = max(value.abs().max().item() for value in one.update.values())
        noise = torch.Generator().manual_seed(one.client)
        update = {name: value + 50 * size * torch.randn(value.shape, generator=noise) for name, value in one.update.items()}
        object.__setattr__(one, "update", update)
    chosen = adversary.build("attribute(column=job)")(seen, task, 0).scores.view(20, 4, 3).argmax(-1)
    assert (chosen == places).double().mean() < 0.6


def test_an_informed_attacker_tries_what_the_defense_would_send():
    places, seen, task = asked(1)
    spec = "sign"
    for one in seen:
        rows = one.knowledge.candidates
        right = int(places[one.client])
        step = Step(one.params, task.model, rows.x[right : right + 1], rows.y[:1])
        sent = {name: value.sign() for name, value in step.gradient().items()}
        object.__setattr__(one, "update", sent)
    (informed,) = adversary.build("attribute(column=job)").informed(spec, adversary.Facts())
    assert adversary.text_of(informed.attack) == "attribute(column='job', through='sign')"
    assert torch.equal(informed.attack(seen, task, 0).scores.argmax(1), places[:, 0])
    assert adversary.build("attribute(column=job)").informed("none", adversary.Facts()) == []


def test_what_goes_through_no_defense_is_the_gradient(rng):
    x, y, seen, task = scene(2)
    (sent,) = through("none", task, seen[0], x[:1], y[:1], rng, 2)
    assert torch.allclose(sent, torch.cat([value.flatten() for value in seen[0].update.values()]), atol=1e-6)


def test_a_property_is_learned_from_public_batches():
    x, _, seen, task = scene(4, targets=60, seed=5)
    rng = torch.Generator().manual_seed(8)
    public = Public(ROWS.noise(300, rng), torch.randint(2, (300,), generator=rng))
    attack = adversary.build("property(column=job, value=c, batches=300)")
    scores = attack.taught(attack.learn(task, seen[0], public, rng))(seen, task, 0).scores[:, 0]
    has = x[..., ROWS.places["job"]][..., 2].any(1)
    ranks = (scores[has][:, None] > scores[~has]).double().mean()
    assert ranks > 0.75
    with pytest.raises(AttackError, match="has the values a, b, c, not 'z'"):
        adversary.build("property(column=job, value=z)").learn(task, seen[0], public, rng)
    with pytest.raises(AttackError, match="trained on public examples first"):
        attack(seen, task, 0)


def test_public_batches_are_half_with_and_half_without(rng):
    has = torch.arange(100) < 10
    chosen = drawn(has, 40, 6, rng)
    assert has[chosen].any(1).tolist() == [True] * 20 + [False] * 20
    with pytest.raises(AttackError, match="1 of 100 public examples"):
        drawn(torch.arange(100) < 1, 40, 6, rng)


def test_ridge_finds_a_direction(rng):
    x, direction = torch.randn(80, 30, generator=rng), torch.randn(30, generator=rng)
    assert torch.cosine_similarity(ridge(x, (x @ direction)[:, None])[0], direction, dim=0) > 0.99


def test_labels_are_added_up_over_rounds():
    _, y, seen, task = scene(4, targets=3, seed=6)
    for number, one in enumerate(seen, 1):
        object.__setattr__(one, "client", 0 if number < 3 else 7)
        object.__setattr__(one, "server_round", number)
    scores = adversary.build("label_distribution")(seen, task, 0).scores
    assert torch.equal(scores[0], scores[1])
    assert torch.allclose(scores.sum(1), torch.ones(3))
    assert (scores[0] - y[:2].flatten().bincount(minlength=2) / 8).abs().max() <= 0.25


def test_without_noise_what_goes_through_is_its_mean(rng):
    x, y, seen, task = scene(4)
    for spec, draws in (("dp_sgd(noise=0.01, clip=0.1)", 400), ("dp_gaussian(scale=0.01)", 400), ("sign", 1)):
        bare = through(spec, task, seen[0], x[:1], y[:1], rng, 1, noise=False)
        mean = through(spec, task, seen[0], x[:1], y[:1], rng, draws)
        torch.testing.assert_close(bare, mean, atol=0.004 if draws > 1 else 0.0, rtol=0)
        assert torch.equal(bare, through(spec, task, seen[0], x[:1], y[:1], rng, 1, noise=False))
