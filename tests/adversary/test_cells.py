"""What quantize, sign and prune send says in which interval each entry lies."""

import dataclasses

import pytest
import torch

from adversary import Facts
from adversary.informed.cells import Signs, cells_of, variants
from client_defenses import Memory, build

DEFENSES = [
    "quantize(bits=1)",
    "quantize(bits=2)",
    "quantize(bits=5)",
    "quantize(bits=3, stochastic=True)",
    "sign",
    "sign(scale='none')",
    "prune(ratio=0.9)",
    "prune(ratio=0.9, scope='tensor')",
]


@pytest.fixture
def gradient(rng):
    g = {"w": torch.randn(40, 30, generator=rng), "b": 1e-3 * torch.randn(500, generator=rng)}
    g["w"][0] = 0
    return g


@pytest.mark.parametrize("defense", DEFENSES)
def test_the_true_gradient_lies_in_its_cells_and_no_other_is_as_likely(defense, gradient, rng):
    built = build(defense)
    sent, objective = built.transform(gradient, Memory.fresh(0)), cells_of(built)
    for name, cell in objective.cells(sent).items():
        slack = 1e-6 * gradient[name].abs().max()
        assert (cell.lower <= gradient[name] + slack).all(), name
        assert (cell.upper >= gradient[name] - slack).all(), name
        assert (cell.lower < cell.upper).any(), name
    other = {name: value[torch.randperm(len(value), generator=rng)] for name, value in gradient.items()}
    assert objective(gradient, sent, 0.75) < 0.5 * objective(other, sent, 0.75)


def test_the_scale_counts_only_where_it_was_sent(gradient):
    sent = build("sign").transform(gradient, Memory.fresh(0))
    twice = {name: 2 * value for name, value in gradient.items()}
    assert Signs()(twice, sent, 0.0) > Signs()(gradient, sent, 0.0)
    scale_free = Signs(scale="none")
    assert scale_free(twice, sent, 0.0) == pytest.approx(scale_free(gradient, sent, 0.0).item(), rel=1e-5)


@pytest.mark.parametrize("defense", ["quantize(bits=2, memory=True)", "sign(memory=True)", "prune(ratio=0.9, memory=True)"])
def test_what_was_left_out_before_is_in_the_cells(defense, gradient):
    """All rounds fit the true gradient; taken one by one, the later ones do not."""
    built, memory = build(defense), Memory.fresh(0)
    sent = [built.transform(gradient, memory) for _ in range(3)]
    objective = cells_of(built)
    forgetful = dataclasses.replace(objective, memory=False)
    true = objective.over_rounds([gradient] * 3, sent, 0.75)
    assert true < 0.5 * forgetful.over_rounds([gradient] * 3, sent, 0.75)
    nearly = {name: 1.2 * value for name, value in gradient.items()}
    assert true < 0.5 * objective.over_rounds([nearly] * 3, sent, 0.75)


def test_later_rounds_say_something_only_if_examples_repeat():
    defense = build("sign(memory=True)")
    told = {one.name: one.why_not for one in variants(defense, Facts(rounds=3, public=1000))}
    assert "do not repeat" in told["most likely"]
    assert not {one.name: one.why_not for one in variants(defense, Facts(rounds=3, repeats=True, public=1000))}["most likely"]


def test_smoother_with_progress_is_never_infinite(gradient):
    """A start far outside must still have a slope."""
    sent = build("prune(ratio=0.9)").transform(gradient, Memory.fresh(0))
    far = {name: (1e3 * torch.ones_like(value)).requires_grad_() for name, value in gradient.items()}
    loss = cells_of(build("prune(ratio=0.9)"))(far, sent, 0.75)
    slopes = torch.autograd.grad(loss, list(far.values()))
    assert loss.isfinite()
    assert all((slope != 0).any() and slope.isfinite().all() for slope in slopes)
