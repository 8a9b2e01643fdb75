"""Attacks: they work on undefended updates, do not depend on company, and see nothing that was not granted."""

import dataclasses
import re

import pytest
import torch

import adversary
import client_defenses
from adversary import AttackError, objectives, priors
from adversary.labels import infer
from adversary.objectives import cosine, squared_l2
from adversary.priors import group_consistency, total_variation
from adversary.search import observers
from adversary.search.lbfgs import BatchedLBFGS
from adversary.search.optimizers import OPTIMIZERS, Adam
from adversary.spaces import SPACES
from client_defenses import Defense, Memory
from fl_app import data
from fl_app.core import spec
from fl_app.core.local import LocalRule
from fl_app.core.observation import Knowledge
from fl_app.models.statistics import batchnorm_statistics
from helpers.attacks import attack, digits, informed, psnr, seen_of

QUICK = {
    "ci_net": "ci_net(iterations=100, lr=0.02, channels=4)",
    "ci_net_lbfgs": "ci_net_lbfgs(iterations=40, channels=8, seeds=2, refined=9)",
    "coarse_to_fine": "coarse_to_fine(coarsest=4, finest=1, iterations=50)",
    "cosine_lbfgs": "cosine_lbfgs(iterations=150)",
    "dlg": "dlg(iterations=300, restarts=1)",
    "epochwise": "epochwise(iterations=150)",
    "gauss_newton": "gauss_newton(iterations=3, products=15)",
    "grad_inversion": "grad_inversion(iterations=150, seeds=2, lr=0.1)",
    "idlg": "idlg(iterations=200, restarts=1)",
    "inverting_gradients": "inverting_gradients(iterations=300, signed=False, init='uniform')",
    "matching": "matching(optimizer=lbfgs(iterations=150), space=pixels(init=uniform, boxed=False))",
    "rog": "rog",
    "rows": "rows(iterations=200)",
    "sme": "sme(iterations=150)",
}


def test_every_attack_that_is_not_trained_first_is_tried():
    elsewhere = {
        "cocktail_party",
        "patches",
        "peeling",
        "readout",
        "spear",
        "fishing",
        "imprint",
        "loki",
        "traps",
    }  # which take other networks: files of their own
    elsewhere |= {name for name, made in adversary.ATTACKS.items() if getattr(made, "question", "")}  # they rebuild nothing
    elsewhere |= {name for name, made in adversary.ATTACKS.items() if getattr(made, "of_text", False) is True}
    assert QUICK.keys() == {name for name in adversary.ATTACKS.keys() - elsewhere if not adversary.build(name).trained}


def test_attacks_and_their_pieces_have_few_settings():
    registries = [adversary.ATTACKS, SPACES, OPTIMIZERS, objectives.registered(), priors.registered(), observers.registered()]
    for name, factory in [item for registry in registries for item in registry.items()]:
        assert len(spec.settings_of(factory)) <= 10 + 3 * (name == "matching"), name  # which is made of all pieces
    presets = [adversary.ATTACKS[name] for name in ("dlg", "idlg", "inverting_gradients", "cosine_lbfgs", "grad_inversion")]
    assert all(5 <= len(spec.settings_of(preset)) <= 8 for preset in presets)


@pytest.mark.parametrize("name", sorted(QUICK))
def test_every_attack_beats_the_blind_floor_on_an_undefended_update(name):
    x, y = digits(2, 1)
    seen, task = seen_of(x, y)
    guess = attack(QUICK[name], seen, task)
    blind = torch.rand(x.shape, generator=torch.Generator().manual_seed(9))
    mean = data.load("mnist").train.x.float().mean(0) / 255
    assert (psnr(guess.x, x) > psnr(blind, x)).all()
    assert psnr(guess.x, x).mean() > psnr(mean.expand_as(x), x).mean()
    assert torch.equal(guess.y, y)
    assert guess.x.min() >= 0
    assert guess.x.max() <= 1


@pytest.mark.parametrize("name", sorted(QUICK))
def test_every_attack_is_seeded_and_does_not_depend_on_company(name):
    """Vectorised over targets equals one target at a time."""
    x, y = digits(3, 1, start=5)
    seen, task = seen_of(x, y)
    steps = {"ci_net": 4, "ci_net_lbfgs": 2, "coarse_to_fine": 4}.get(name, 12)  # many layers or phases carry rounding on
    text = re.sub("iterations=[0-9]+", f"iterations={steps}", QUICK[name]).replace("=12, products=15", "=2, products=3")
    together, again = attack(text, seen, task), attack(text, seen, task)
    assert torch.equal(together.x, again.x)
    alone = torch.cat([attack(text, [one], task).x for one in reversed(seen)]).flip(0)
    # The draws are the same; convolutions over other numbers of targets round in other ways, which steps carry on.
    torch.testing.assert_close(alone, together.x, rtol=1e-3, atol=1e-2)
    assert not torch.equal(attack(text, seen, task, seed=1).x, together.x)


def test_idlg_finds_the_very_pixels():
    x, y = digits(4, 1)
    seen, task = seen_of(x, y)
    guess = attack("idlg(iterations=1500)", seen, task)
    assert (psnr(guess.x, x) > 30).all()
    assert (guess.loss < 1e-3).all()


def test_a_batch_is_rebuilt_with_inferred_labels():
    x, y = digits(1, 3)
    seen, task = seen_of(x, y)
    guess = attack(
        "matching(optimizer=lbfgs(iterations=400), space=pixels(init=uniform, boxed=False), labels=count)", seen, task
    )
    assert torch.equal(guess.y.sort(1).values, y.sort(1).values)
    best = [max(psnr(guess.x[:, i : i + 1], x[:, j : j + 1]).item() for i in range(3)) for j in range(3)]
    assert min(best) > 15


def test_local_steps_are_unrolled():
    """Matching the unrolled steps finds the images; taking the weight change for one gradient does not."""
    x, y = digits(1, 2)
    rule = LocalRule(kind="delta", batch_size=1, steps=4, lr=0.02, examples=2)
    seen, task = seen_of(x, y, rule, knowledge=Knowledge(labels=y[0]))
    text = "matching(optimizer=lbfgs(iterations=100), space=pixels(init=uniform, boxed=False), labels=given)"
    unrolled = attack(text, seen, task)
    taken = {name: -value / (rule.lr * rule.steps) for name, value in seen[0].update.items()}
    naive = attack(text, [dataclasses.replace(seen[0], update=taken, rule=LocalRule(batch_size=2))], task)
    mean = data.load("mnist").train.x.float().mean(0) / 255
    assert psnr(unrolled.x, x).mean() > psnr(mean.expand_as(x), x).mean() + 3
    assert psnr(unrolled.x, x).mean() > psnr(naive.x, x).mean() + 3


@pytest.mark.parametrize("rule", ["sign", "min_column", "count"])
def test_labels_of_single_examples_are_read_off_exactly(rule):
    x, y = digits(20, 1)
    seen, task = seen_of(x, y)
    rng = torch.Generator().manual_seed(0)
    assert [infer(rule, one, task, rng).item() for one in seen] == y.flatten().tolist()


@pytest.mark.parametrize(("rule", "start"), [("min_column", 0), ("count", 0), ("count", 40), ("count_rows", 0)])
def test_labels_of_batches_are_mostly_right(rule, start):
    x, y = digits(10, 8, start)
    seen, task = seen_of(x, y, model_text="lenet5")
    rng = torch.Generator().manual_seed(0)
    right = 0
    for one, true in zip(seen, y, strict=True):
        found = torch.bincount(infer(rule, one, task, rng), minlength=10)
        right += torch.minimum(found, torch.bincount(true, minlength=10)).sum().item()
    assert right / 80 > (0.9 if rule.startswith("count") else 0.6)


def test_counting_whole_rows_outlives_decoys():
    """The bias alone is ten entries, of which four are decoys here; rows hold hundreds."""
    x, y = digits(6, 8)
    seen, task = seen_of(x, y)
    drop, rng = client_defenses.build("gradient_dropout(p=0.6)"), torch.Generator().manual_seed(0)
    spoiled = [dataclasses.replace(one, update=drop.transform(one.update, Memory({}, rng))) for one in seen]
    right = {
        rule: sum(torch.equal(infer(rule, one, task, rng), true.sort().values) for one, true in zip(spoiled, y, strict=True))
        for rule in ("count", "rows", "count_rows")
    }
    assert right["count_rows"] >= 5
    assert right["count_rows"] > max(right["count"], right["rows"])


def test_counting_works_on_weight_changes_too():
    x, y = digits(5, 8)
    seen, task = seen_of(x, y, LocalRule(kind="delta", batch_size=4, steps=4, lr=0.01, examples=8), model_text="lenet5")
    rng = torch.Generator().manual_seed(0)
    found = [torch.bincount(infer("count", one, task, rng), minlength=10) for one in seen]
    right = sum(torch.minimum(f, torch.bincount(t, minlength=10)).sum().item() for f, t in zip(found, y, strict=True))
    assert right / 40 > 0.9


def test_what_was_not_granted_is_refused():
    x, y = digits(1, 1)
    seen, task = seen_of(x, y)
    for text, hint in (
        ("idlg(labels='given')", "grant labels"),
        ("matching(observers=[expected])", "grant defense"),
        ("grad_inversion(bn=1.0)", "grant statistics"),
    ):
        with pytest.raises(AttackError, match=hint):
            attack(text, seen, task)
    granted = [dataclasses.replace(one, knowledge=Knowledge(labels=y[0])) for one in seen]
    assert granted[0].knowledge.ledger == ("labels",)
    assert torch.equal(attack("idlg(labels='given', iterations=3)", granted, task).y, y)


def test_incompatible_observations_and_impossible_settings_are_refused():
    x, y = digits(2, 1)
    seen, task = seen_of(x, y)
    other = dataclasses.replace(seen[1], num_examples=2)
    for bad, text, hint in (
        ([], "idlg", "nothing to attack"),
        ([seen[0], other], "idlg", "in groups"),
        ([other], "idlg", "sign rule"),
        (seen, "matching(objective=ignoring(l2, layers=['conv', 'fc']))", "leaves nothing"),
    ):
        with pytest.raises(AttackError, match=hint):
            attack(text, bad, task)


def test_the_last_layer_can_be_left_out_of_the_match():
    x, y = digits(1, 1)
    seen, task = seen_of(x, y)
    spoiled = {name: value + 100 * name.startswith("fc") for name, value in seen[0].update.items()}
    muted = [dataclasses.replace(seen[0], update=spoiled, knowledge=Knowledge(labels=y[0]))]
    text = "matching(objective={}, optimizer=lbfgs(iterations=200), space=pixels(init=uniform, boxed=False), labels=given)"
    blocked, open_ = (attack(text.format(objective), muted, task) for objective in ("l2", "ignoring(l2, layers=['last'])"))
    assert psnr(open_.x, x).item() > psnr(blocked.x, x).item() + 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Halve(Defense):
    """Sends half the gradient in the first layer: the match is wrong unless the attack knows."""

    def transform(self, grads, memory):
        return {name: value * (0.2 if name.startswith("conv1") else 1.0) for name, value in grads.items()}

    def expected(self, grads):
        return self.transform(grads, None)


def test_an_attack_can_go_through_a_granted_defense(monkeypatch):
    monkeypatch.setitem(client_defenses.DEFENSES, "halve", Halve)
    x, y = digits(1, 1)
    seen, task = seen_of(x, y)
    protected = Halve().transform(seen[0].update, None)
    granted = [dataclasses.replace(seen[0], update=protected, knowledge=Knowledge(defense="halve"))]
    text = "idlg(iterations=200, restarts=1)"
    told = {one.name: one.attack for one in informed(text, "halve")}
    assert list(told) == ["expected", "noise-proof"]  # for a defense that nobody wrote an attacker for
    assert psnr(attack(told["expected"], granted, task).x, x).item() > psnr(attack(text, granted, task).x, x).item() + 3


def test_granted_batchnorm_statistics_are_used():
    x, y = digits(1, 2)
    seen, task = seen_of(x, y, model_text="convnet(width=2)")
    statistics = batchnorm_statistics(task.model, seen[0].params, x[0])
    granted = [dataclasses.replace(one, knowledge=Knowledge(statistics=statistics)) for one in seen]
    with_bn = attack("grad_inversion(iterations=3, seeds=2, bn=0.1)", granted, task)
    without = attack("grad_inversion(iterations=3, seeds=2)", granted, task)
    assert not torch.equal(with_bn.x, without.x)


def test_objectives_and_priors():
    a = {"w": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.0])}
    assert squared_l2(a, {"w": torch.tensor([0.0, 0.0]), "b": torch.tensor([1.0])}).item() == 26
    assert cosine(a, {name: 7 * value for name, value in a.items()}).item() == pytest.approx(0, abs=1e-6)
    assert cosine(a, {name: -value for name, value in a.items()}).item() == pytest.approx(2)
    flat = torch.full((2, 3, 1, 1, 5, 5), 0.4)
    assert total_variation(flat).abs().max() == 0
    assert total_variation(torch.rand(flat.shape)).shape == (2, 3)
    assert group_consistency(flat).abs().max() == pytest.approx(0, abs=1e-12)


def test_adam_is_torchs():
    z = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    ours, theirs = Adam(lr=0.1, iterations=100).start(lambda z: z["x"]), torch.nn.Parameter(z.clone())
    optimizer = torch.optim.Adam([theirs], lr=0.1)
    for _ in range(20):
        moved = ours.step({"z": z}, {"z": z.cos() * z}, torch.zeros(2, 3))["z"]
        theirs.grad = (theirs.cos() * theirs).detach()
        optimizer.step()
        z = moved
        torch.testing.assert_close(z, theirs.detach(), rtol=1e-4, atol=1e-5)


def test_lbfgs_solves_each_of_many_problems():
    """Rosenbrock's valley from many starts, with a hole of NaN beside it: every problem ends at (1, 1) by itself."""
    point = torch.randn(16, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    lbfgs = BatchedLBFGS()
    for _ in range(300):
        z = point.detach().requires_grad_()
        loss = (1 - z[:, 0]) ** 2 + 100 * (z[:, 1] - z[:, 0] ** 2) ** 2
        loss = torch.where(z[:, 0].abs() > 6, torch.nan, loss)
        (gradient,) = torch.autograd.grad(loss.nansum(), z)
        point = lbfgs.step(point, loss.detach(), gradient)
    torch.testing.assert_close(lbfgs._point, torch.ones_like(point), rtol=1e-4, atol=1e-4)
