"""Gauss-Newton: losses as sums of squares, and what following their curvature gains."""

import pytest
import torch

from adversary import AttackError, Facts, build, entries, objectives, priors
from adversary.informed.gradient_dropout import Mixture
from adversary.search.gauss_newton import BatchedGaussNewton
from adversary.search.optimizers import GaussNewton
from fl_app.scoring.images import psnr
from fl_app.scoring.matching import match
from helpers.attacks import attack, digits, seen_of

OBJECTIVES = {
    "cosine": objectives.Cosine(),
    "ignoring": entries.Ignoring(objective=objectives.L2(), layers=("b",)),
    "l2": objectives.L2(),
    "masked": entries.Masked(objective=objectives.Relative()),
    "relative": objectives.Relative(),
}
PRIORS = {"box": priors.Box(weight=1.0), "norm": priors.Norm(weight=1.0), "tv": priors.TotalVariation(weight=1.0)}


def quality(guess, x):
    """Mean PSNR of each target, after matching."""
    return torch.stack([psnr(one[match(one, true)], true).mean() for one, true in zip(guess, x, strict=True)])


def two_updates():
    rng = torch.Generator().manual_seed(0)
    return [{"a": torch.randn(4, 5, generator=rng), "b": torch.randn(4, generator=rng)} for _ in range(2)]


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_residuals_square_to_the_objective(name):
    dummy, seen = two_updates()
    seen["a"][0] = 0
    objective = OBJECTIVES[name]
    kept = {key: seen[key] for key in objective.kept(seen)}
    torch.testing.assert_close(objective.residuals(dummy, kept, 0.0).square().sum(), objective(dummy, kept, 0.0))
    assert objective.squares


@pytest.mark.parametrize("name", sorted(PRIORS))
def test_residuals_square_to_the_prior(name):
    x = 2 * torch.rand(2, 1, 3, 1, 6, 6, generator=torch.Generator().manual_seed(0)) - 0.5
    # Those of the total variation are smoothed below a hundredth.
    torch.testing.assert_close(PRIORS[name].residuals(x).square().sum(-1), PRIORS[name].penalty(x), rtol=0.05, atol=0)


def test_residuals_of_a_mixture_have_its_gradient():
    dummy, seen = two_updates()
    mixture = Mixture(p=0.6, sigma=0.5)
    for progress in (0.0, 0.2, 0.5, 0.9):
        leaf = dummy["a"].clone().requires_grad_()
        (exact,) = torch.autograd.grad(mixture({**dummy, "a": leaf}, seen, progress), leaf)
        (ours,) = torch.autograd.grad(mixture.residuals({**dummy, "a": leaf}, seen, progress).square().sum(), leaf)
        torch.testing.assert_close(ours, exact)


def test_a_linear_problem_takes_a_few_steps_whatever_its_scale():
    rng = torch.Generator().manual_seed(0)
    matrix = torch.randn(3, 12, 8, generator=rng, dtype=torch.float64) * torch.tensor([1.0, 1e-3, 1e3])[:, None, None]
    truth = torch.randn(3, 8, generator=rng, dtype=torch.float64)
    target = torch.einsum("pij,pj->pi", matrix, truth)

    def residuals(point):
        return torch.einsum("pij,pj->pi", matrix, point) - target

    steps, point = BatchedGaussNewton(residuals, products=20), torch.zeros(3, 8, dtype=torch.float64)
    for _ in range(12):
        point = steps.step(point, residuals(point).square().sum(1))
    torch.testing.assert_close(point, truth, rtol=1e-5, atol=1e-5)


def test_a_step_that_does_not_help_is_taken_back_and_damped():
    def residuals(point):
        return torch.cat([point.atan(), 0 * point], dim=1)  # from 3 the undamped step goes to -9.5, and further with each

    steps, point = BatchedGaussNewton(residuals, products=5), torch.tensor([[3.0]])
    for _ in range(40):
        point = steps.step(point, residuals(point).square().sum(1))
    assert point.abs().item() < 1e-3


def test_a_batch_is_rebuilt():
    x, y = digits(1, 2)
    seen, task = seen_of(x, y)
    guess = attack("gauss_newton(iterations=6, products=40)", seen, task)
    assert quality(guess.x, x).item() > 25
    assert guess.loss.item() < 1e-4


def test_what_is_no_sum_of_squares_is_refused():
    seen, task = seen_of(*digits(1, 1))
    with pytest.raises(AttackError, match="Robust is no sum of squares"):
        attack("matching(objective=robust, optimizer=gauss_newton)", seen, task)
    with pytest.raises(AttackError, match="Group is no sum of squares"):
        attack("matching(priors=[group(1)], optimizer=gauss_newton)", seen, task)


def test_an_informed_attacker_without_squares_goes_back_to_lbfgs():
    told = build("gauss_newton").informed("drop_fedsgd", Facts())[0].attack
    kept = build("gauss_newton").informed("gradient_dropout", Facts())[0].attack
    assert not isinstance(told.optimizer, GaussNewton)
    assert isinstance(kept.optimizer, GaussNewton)
