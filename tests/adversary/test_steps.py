"""Steps of a search: Adam as in torch, L-BFGS as in a textbook, each reconstruction by itself."""

import math

import pytest
import torch

from adversary.search.lbfgs import BatchedLBFGS
from adversary.search.optimizers import LBFGS, Adam


def nothing(variables):
    """Residuals, at which first-order steps do not look."""
    raise AssertionError


@pytest.mark.parametrize("signed", [False, True])
def test_adam_decays_after_three_five_and_seven_eighths(signed):
    z = torch.linspace(-2, 2, 6, dtype=torch.float64).view(1, 2, 3)
    ours, theirs = (
        Adam(lr=0.1, iterations=8, decay=True, signed=signed).start(nothing),
        torch.nn.Parameter(z.clone()),
    )
    optimizer = torch.optim.Adam([theirs], lr=0.1)
    for iteration in range(8):
        optimizer.param_groups[0]["lr"] = 0.1 * 0.1 ** ((iteration >= 3) + (iteration >= 5) + (iteration >= 7))
        gradient = z**3 + 0.5
        z = ours.step({"z": z}, {"z": gradient}, torch.zeros(1, 2, dtype=torch.float64))["z"]
        theirs.grad = gradient.sign() if signed else gradient
        optimizer.step()
        torch.testing.assert_close(z, theirs.detach(), rtol=1e-6, atol=1e-9)


def test_adam_forgets_a_reconstruction_that_is_started_anew():
    z, gradient = torch.zeros(1, 2, 3), torch.tensor([1.0, -2.0, 3.0]).expand(1, 2, 3)
    steps = Adam(lr=0.1, iterations=100).start(nothing)
    for _ in range(3):
        steps.step({"z": z}, {"z": -5 * gradient}, torch.zeros(1, 2))
    steps.reset(torch.tensor([[True, False]]))
    moved = steps.step({"z": z}, {"z": gradient}, torch.zeros(1, 2))["z"]
    torch.testing.assert_close(moved[0, 0], torch.tensor([-0.1, 0.1, -0.1]))  # as the first step of all
    assert (moved[0, 1] * gradient[0, 1] > 0).all()  # still carried along by the past


def valley(z):
    """Rosenbrock's: the value and the gradient."""
    a, b = z[..., 0], z[..., 1]
    return (1 - a) ** 2 + 100 * (b - a**2) ** 2, torch.stack([-2 * (1 - a) - 400 * a * (b - a**2), 200 * (b - a**2)], -1)


def textbook(point, calls, lr=1.0, history=50):
    """The points where L-BFGS with Armijo's rule looks, by the matrix itself."""
    (loss, gradient), scale, pairs, looked = valley(point), 1.0, [], []
    direction, length = -gradient, lr * min(1.0, 1 / gradient.abs().sum().item())
    for _ in range(calls):
        there = point + length * direction
        looked.append(there)
        (value, slope), derivative = valley(there), (direction * gradient).sum().item()
        if value > loss + 1e-4 * length * derivative:
            parabola = -derivative * length**2 / (2 * (value - loss - length * derivative).item())
            length = min(max(parabola, 0.1 * length), 0.5 * length)
            continue
        step, change = there - point, slope - gradient
        curved = step @ change > 1e-8 * step.norm() * change.norm()
        pairs = [*pairs, (step, change) if curved else None][-history:]  # a pair without curvature has its place, too
        scale = (step @ change) / (change @ change) if curved else scale
        inverse = scale * torch.eye(2, dtype=point.dtype)
        for s, y in filter(None, pairs):
            turn = torch.eye(2, dtype=point.dtype) - torch.outer(s, y) / (s @ y)
            inverse = turn @ inverse @ turn.T + torch.outer(s, s) / (s @ y)
        point, loss, gradient = there, value, slope
        direction, length = -inverse @ gradient, lr
    return torch.stack(looked)


@pytest.mark.parametrize(("lr", "history", "starts"), [(1.0, 50, 5), (0.7, 50, 3), (1.0, 2, 1)])
def test_lbfgs_is_that_of_the_textbook_for_each_problem(lr, history, starts):
    begin = torch.tensor([[-1.2, 1.0], [0.5, 0.0], [2.0, -1.0], [0.0, 0.3], [-2.0, 3.0]], dtype=torch.float64)[:starts]
    lbfgs, point, looked = BatchedLBFGS(lr, history), begin, []
    for _ in range(20):
        point = lbfgs.step(point, *valley(point))
        looked.append(point)
    for i, start in enumerate(begin):
        torch.testing.assert_close(torch.stack(looked)[:, i], textbook(start, 20, lr, history), rtol=1e-5, atol=1e-7)


def test_a_step_that_leads_nowhere_is_shortened_until_the_search_begins_anew():
    lbfgs, point, gradient = BatchedLBFGS(), torch.zeros(1, 2), torch.tensor([[3.0, -1.0]])
    ways = [lbfgs.step(point, torch.ones(1), gradient)]
    ways += [lbfgs.step(ways[-1], torch.full((1,), math.nan), gradient) for _ in range(9)]
    lengths = [(-way[0, 0] / 3).item() for way in ways]
    assert lengths[:8] == pytest.approx([0.25 * 0.1**k for k in range(8)], rel=1e-4)
    assert lengths[8] == pytest.approx(0.25)  # 0.25e-8 is too short
    assert lengths[9] == pytest.approx(0.025)


def test_a_direction_that_leads_uphill_gives_way_to_steepest_descent(monkeypatch):
    lbfgs, slope = BatchedLBFGS(), torch.tensor([[3.0, -1.0], [0.5, 0.25]])
    monkeypatch.setattr(lbfgs, "_two_loops", lambda: slope.clone())
    way = lbfgs.step(torch.zeros(2, 2), torch.ones(2), slope)
    torch.testing.assert_close(lbfgs._derivative, -slope.square().sum(1))
    torch.testing.assert_close(way, -slope / slope.abs().sum(1, keepdim=True).clamp_min(1))


def test_a_slope_that_stays_the_same_has_no_curvature():
    lbfgs, point, slope = BatchedLBFGS(), torch.zeros(1, 2), torch.tensor([[3.0, -1.0]])
    for _ in range(4):
        point = lbfgs.step(point, (point * slope).sum(1), slope)
        assert all(value.isfinite().all() for value in lbfgs.state().values())
    torch.testing.assert_close(point, -slope * 4 * 0.25)  # the same step each time


def test_a_lower_loss_without_a_gradient_is_no_step():
    lbfgs, point, gradient = BatchedLBFGS(), torch.zeros(1, 2), torch.tensor([[3.0, -1.0]])
    way = lbfgs.step(point, torch.ones(1), gradient)
    for number in (math.nan, math.inf):
        lower = 1 - 0.9 * 0.25 * 10  # the parabola through it would lead five times as far
        again = BatchedLBFGS()
        assert torch.equal(again.step(point, torch.ones(1), gradient), way)
        torch.testing.assert_close(again.step(way, torch.full((1,), lower), torch.full((1, 2), number)), way / 2)


def test_a_problem_that_is_started_anew_forgets_and_takes_whatever_comes():
    quadratic = torch.tensor([1.0, 10.0], dtype=torch.float64)
    lbfgs, point = BatchedLBFGS(), torch.tensor([[3.0, 1.0], [3.0, 1.0]], dtype=torch.float64)
    for _ in range(4):
        point = lbfgs.step(point, (quadratic * point**2).sum(1) / 2, quadratic * point)
    before = lbfgs._point.clone()
    lbfgs.reset(torch.tensor([True, False]))
    far = torch.full((2, 2), 100.0, dtype=torch.float64)
    point = lbfgs.step(far, (quadratic * far**2).sum(1) / 2, quadratic * far)
    slope = quadratic * far[0]
    torch.testing.assert_close(point[0], far[0] - slope / slope.abs().sum())  # steepest descent from there
    torch.testing.assert_close(lbfgs._point[1], before[1])  # the other takes the bad step back


def test_all_variables_of_a_reconstruction_move_together():
    rng = torch.Generator().manual_seed(0)
    variables = {"z": torch.randn(2, 3, 2, 2, generator=rng), "labels": torch.randn(2, 3, 4, generator=rng)}
    steps, plain = LBFGS(lr=0.5).start(nothing), BatchedLBFGS(0.5)
    for _ in range(3):
        flat = torch.cat([variables["z"].flatten(2), variables["labels"]], 2).flatten(0, 1)
        loss = (flat**4).sum(1) / 4
        expected = plain.step(flat, loss, flat**3).view(2, 3, 8)
        moved = steps.step(variables, {name: value**3 for name, value in variables.items()}, loss.view(2, 3))
        assert {name: value.shape for name, value in moved.items()} == {name: value.shape for name, value in variables.items()}
        torch.testing.assert_close(torch.cat([moved["z"].flatten(2), moved["labels"]], 2), expected)
        variables = moved
    steps.reset(torch.tensor([[True, False, False], [False, False, False]]))
    plain.reset(torch.tensor([True, False, False, False, False, False]))
    torch.testing.assert_close(steps._inner._loss, plain._loss)
