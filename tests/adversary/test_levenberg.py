"""Gauss-Newton against Levenberg and Marquardt by the matrices themselves, one problem at a time; what steps remember."""

import pytest
import torch

from adversary.search.gauss_newton import BatchedGaussNewton
from adversary.search.lbfgs import BatchedLBFGS
from adversary.search.optimizers import LBFGS, Adam, GaussNewton, joined, parted

STARTS = torch.tensor([[3.0, -2.0], [0.5, 0.1], [-1.2, 1.0]], dtype=torch.float64)


def residuals(point):
    """Rosenbrock's valley as squares, and a kink that is too steep for a whole step."""
    a, b = point[:, 0], point[:, 1]
    return torch.stack([1 - a, 10 * (b - a**2), (a + b).atan()], 1)


def solved(matrix, right):
    """Conjugate gradients until a thousandth of the right side is left."""
    found, left = torch.zeros_like(right), right
    along = left
    while left.norm() > 1e-3 * right.norm():
        rate = (left @ left) / (along @ matrix @ along)
        found, after = found + rate * along, left - rate * matrix @ along
        along, left = after + (after @ after) / (left @ left) * along, after
    return found


def textbook(point, calls):
    """The points where damped Gauss-Newton looks, with the damping in units of the curvature along the first gradient."""
    damping, size, best, still, looked = 1e-4, None, None, 0, []
    there = point
    for _ in range(calls):
        loss = residuals(there[None])[0].square().sum().item()
        if best is None:
            point, best = there, loss
        else:
            good = loss < best
            gain = (best - loss) / best
            damping = min(max(damping * (0.25 if good else 4.0), 1e-12), 1e6)
            still = 0 if gain > 1e-3 else still + good
            if good:
                point, best = there, loss
        matrix = torch.func.jacrev(lambda p: residuals(p[None])[0])(point)
        slope = matrix.T @ residuals(point[None])[0]
        size = (matrix @ slope).square().sum() / slope.square().sum() if size is None else size
        move = solved(matrix.T @ matrix + damping * size * torch.eye(2, dtype=point.dtype), -slope)
        there = point + move if still < 2 else point
        looked.append(there)
    return torch.stack(looked)


def test_it_is_that_of_the_textbook_for_each_problem():
    steps, point, looked = BatchedGaussNewton(residuals, products=10), STARTS, []
    for _ in range(12):
        point = steps.step(point, residuals(point).square().sum(1))
        looked.append(point)
    for i, start in enumerate(STARTS):
        torch.testing.assert_close(torch.stack(looked)[:, i], textbook(start, 12), rtol=1e-6, atol=1e-9)


def test_who_gains_nothing_twice_is_settled_and_stays():
    def flat(point):
        return torch.cat([point - 1, torch.full_like(point, 5.0)], 1)  # most of the loss cannot be explained

    steps, point = BatchedGaussNewton(flat, products=5), torch.tensor([[1.01], [3.0]])
    assert not steps.settled
    settled, ways = [], []
    for _ in range(30):
        point = steps.step(point, flat(point).square().sum(1))
        settled.append(steps.settled)
        ways.append(point[0].item())
    assert settled == sorted(settled)
    assert (settled[0], settled[-1]) == (False, True)
    assert ways[-1] == ways[-2]
    steps.reset(torch.tensor([True, False]))
    assert not steps.settled
    far = torch.tensor([[9.0], [1.0]])
    moved = steps.step(far, flat(far).square().sum(1))
    assert moved[0].item() == pytest.approx(1.0, abs=0.01)  # whatever comes is accepted, with the first damping
    fresh = BatchedGaussNewton(flat, products=5)
    fresh.reset(torch.tensor([True, False]))
    assert fresh.state() == {}


def test_damping_that_cannot_grow_settles_too():
    steps, point = BatchedGaussNewton(lambda point: point, products=2), torch.ones(1, 1)
    steps.step(point, torch.ones(1))
    for calls in range(1, 40):  # noqa: B007
        steps.step(point, torch.full((1,), 2.0))  # nothing helps, whatever the residuals say
        if steps.settled:
            break
    # 1e-4 times 4 to the power of 17 is beyond the strictest, and it takes two such steps.
    assert calls == 18
    assert steps.state()["damping"].item() == 1e6


def test_more_products_solve_the_step_better():
    scales = torch.tensor([1.0, 3.0, 10.0])
    left = []
    for products in (1, 2, 3):
        moved = BatchedGaussNewton(lambda point: scales * point, products).step(torch.ones(1, 3), scales.square().sum()[None])
        left.append((scales * moved).square().sum().item())
    assert left[0] > left[1] > left[2]
    assert left[2] < 1e-3  # as many products as unknowns solve a linear step


@pytest.mark.parametrize("make", [lambda: BatchedLBFGS(), lambda: BatchedGaussNewton(residuals, 10)])
def test_steps_go_on_from_a_state_as_if_nothing_had_happened(make):
    def step(steps, point):
        left = residuals(point)
        if isinstance(steps, BatchedGaussNewton):
            return steps.step(point, left.square().sum(1))
        leaf = point.detach().requires_grad_()
        loss = residuals(leaf).square().sum(1)
        return steps.step(point, loss.detach(), torch.autograd.grad(loss.sum(), leaf)[0])

    first, point = make(), STARTS
    first.restore({})
    for _ in range(4):
        point = step(first, point)
    second = make()
    second.restore({name: value.clone() for name, value in first.state().items()})
    here = there = point
    for _ in range(4):
        here, there = step(first, here), step(second, there)
        assert torch.equal(here, there)


def test_variables_are_joined_to_one_vector_per_reconstruction():
    variables = {"x": torch.arange(24.0).view(2, 3, 2, 2), "y": torch.arange(100.0, 106.0).view(2, 3, 1)}
    flat = joined(variables)
    assert flat[4].tolist() == [16.0, 17.0, 18.0, 19.0, 104.0]  # of target 1, seed 1
    again = parted(flat, variables)
    assert all(torch.equal(again[name], value) for name, value in variables.items())


def test_an_optimiser_steps_on_all_variables_of_a_reconstruction_at_once():
    start = {"a": STARTS[:, :1].view(3, 1, 1), "b": STARTS[:, 1:].view(3, 1, 1)}

    def left(variables):
        return residuals(joined(variables)).view(3, 1, 3)

    loss = left(start).square().sum(-1)
    leaf = STARTS.clone().requires_grad_()
    slope = torch.autograd.grad(residuals(leaf).square().sum(), leaf)[0]
    grads = {"b": slope[:, 1:].view(3, 1, 1), "a": slope[:, :1].view(3, 1, 1)}  # in whatever order
    plain = BatchedGaussNewton(residuals, 7).step(STARTS, loss[:, 0])
    newton = GaussNewton(products=7).start(left)
    assert torch.equal(joined(newton.step(start, grads, loss)), plain)
    assert newton.settled is False
    lbfgs = LBFGS(lr=0.5).start(left)
    assert torch.equal(joined(lbfgs.step(start, grads, loss)), BatchedLBFGS(0.5).step(STARTS, loss[:, 0], slope))
    assert (lbfgs.settled, Adam().start(left).settled) == (False, False)
    newton.reset(torch.tensor([[True], [False], [False]]))
    assert newton.state()["loss"].isinf().tolist() == [True, False, False]
    assert [one.survives for one in (Adam(), LBFGS(), GaussNewton())] == [False, True, True]
    assert [one.work for one in (Adam(iterations=7), LBFGS(iterations=7), GaussNewton(iterations=7, products=3))] == [7, 7, 42]
