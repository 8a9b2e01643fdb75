"""L-BFGS for many independent problems at once, with a backtracking line search for each.

torch's LBFGS takes one problem. Without a line search, 5 of 8 CIFAR-10 targets stayed on a plateau from N(0, 1) starts.
"""

import torch
from torch import Tensor

from fl_app.core.local import Tensors

ARMIJO = 1e-4
SHORTEST = 1e-8
HISTORY_LENGTH = 50
"""Steps that are remembered."""
HISTORY = ("_steps", "_changes", "_inverse")
"""What L-BFGS remembers of its last steps."""


class BatchedLBFGS:
    """Two-loop recursion and Armijo backtracking over (problems, dimensions); every call costs one evaluation."""

    def __init__(self, lr: float = 1.0, history: int = HISTORY_LENGTH) -> None:
        self.lr, self.history = lr, history
        # Newest last, each (problems, dimensions); a pair that a problem does not have is zero.
        self._steps: list[Tensor] = []
        self._changes: list[Tensor] = []
        self._inverse: list[Tensor] = []  # 1 / (step . change), (problems,)
        self._started = False

    def state(self) -> Tensors:
        """All that the next step depends on, by name; the history is numbered, newest last."""
        found = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return found | {f"{name}/{i}": value for name in HISTORY for i, value in enumerate(getattr(self, name))}

    def restore(self, state: Tensors) -> None:
        """Go on from a state; an empty one is that before the first step."""
        self._started = bool(state)
        for name, value in state.items():
            if "/" not in name:
                setattr(self, name, value)
        for name in HISTORY:
            setattr(self, name, [state[f"{name}/{i}"] for i in range(sum(one.startswith(f"{name}/") for one in state))])

    def reset(self, problems: Tensor) -> None:
        """Forget some problems, bool (problems,): they were started anew."""
        if self._started:
            self._forget(problems)
            self._loss[problems] = torch.inf  # whatever comes next is accepted

    def step(self, point: Tensor, loss: Tensor, gradient: Tensor) -> Tensor:
        """The next points to evaluate, given the last ones with their losses (problems,) and gradients."""
        if not self._started:
            self._start(point, loss, gradient)
            good = torch.ones_like(loss, dtype=torch.bool)
        else:
            allowed = self._loss + ARMIJO * self._length * self._derivative
            good = (loss <= allowed) | self._loss.isinf()
            good &= loss.isfinite() & gradient.isfinite().all(1)
            self._accept(good, point, loss, gradient)
        self._shorten(~good, loss)
        return self._point + self._length[:, None] * self._direction

    def _start(self, point: Tensor, loss: Tensor, gradient: Tensor) -> None:
        self._started = True
        self._point, self._loss, self._gradient = point.clone(), loss.clone(), gradient.clone()
        self._scale = torch.ones_like(loss)
        self._fresh = torch.ones_like(loss, dtype=torch.bool)
        self._aim(torch.ones_like(loss, dtype=torch.bool))

    def _accept(self, good: Tensor, point: Tensor, loss: Tensor, gradient: Tensor) -> None:
        """Move the good problems to their new points and give them a new direction."""
        if not bool(good.any()):
            return
        step, change = point - self._point, gradient - self._gradient
        curvature = (step * change).sum(1)
        # Relative, so that a loss on a small scale (the weight change of a small local rate) has curvature, too.
        flat = 1e-8 * (step.square().sum(1) * change.square().sum(1)).sqrt()
        usable = good & (curvature > flat) & ~self._loss.isinf()
        rows = usable[:, None]
        self._steps.append(torch.where(rows, step, 0))
        self._changes.append(torch.where(rows, change, 0))
        self._inverse.append(torch.where(usable, 1 / curvature, 0))
        if len(self._steps) > self.history:
            for kept in (self._steps, self._changes, self._inverse):
                kept.pop(0)
        self._scale = torch.where(usable, curvature / change.square().sum(1), self._scale)
        self._fresh = self._fresh & ~usable
        self._point = torch.where(good[:, None], point, self._point)
        self._gradient = torch.where(good[:, None], gradient, self._gradient)
        self._loss = torch.where(good, loss, self._loss)
        self._aim(good)

    def _aim(self, chosen: Tensor) -> None:
        """A new direction, its directional derivative and a length for the chosen problems."""
        direction = self._two_loops()
        derivative = (direction * self._gradient).sum(1)
        uphill = ~(derivative < 0)
        direction = torch.where(uphill[:, None], -self._gradient, direction)
        derivative = torch.where(uphill, -self._gradient.square().sum(1), derivative)
        first = (1 / self._gradient.abs().sum(1).clamp_min(1e-30)).clamp(max=1.0) * self.lr
        length = torch.where(self._fresh | uphill, first, self.lr)
        if chosen.all():
            self._direction, self._derivative, self._length = direction, derivative, length
        else:
            self._direction = torch.where(chosen[:, None], direction, self._direction)
            self._derivative = torch.where(chosen, derivative, self._derivative)
            self._length = torch.where(chosen, length, self._length)

    def _shorten(self, bad: Tensor, loss: Tensor) -> None:
        """Shorten the step of the bad problems by the parabola through what is known, to between a tenth and a half."""
        if not bool(bad.any()):
            return
        excess = loss - self._loss - self._length * self._derivative
        parabola = -self._derivative * self._length.square() / (2 * excess)
        shorter = torch.where(parabola.isfinite(), parabola, 0).clamp(0.1 * self._length, 0.5 * self._length)
        self._length = torch.where(bad, shorter, self._length)
        stuck = bad & (self._length < SHORTEST)
        if bool(stuck.any()):
            self._forget(stuck)
            self._aim(stuck)

    def _forget(self, problems: Tensor) -> None:
        for kept in (*self._steps, *self._changes, *self._inverse):
            kept[problems] = 0
        self._scale[problems] = 1
        self._fresh[problems] = True

    def _two_loops(self) -> Tensor:
        direction = -self._gradient
        weights = []
        for step, change, inverse in zip(reversed(self._steps), reversed(self._changes), reversed(self._inverse), strict=True):
            weight = (step * direction).sum(1) * inverse
            direction = torch.addcmul(direction, weight[:, None], change, value=-1)
            weights.append(weight)
        direction = direction * self._scale[:, None]
        for step, change, inverse, weight in zip(self._steps, self._changes, self._inverse, reversed(weights), strict=True):
            direction = torch.addcmul(direction, (weight - (change * direction).sum(1) * inverse)[:, None], step)
        return direction
