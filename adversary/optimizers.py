"""Optimisers of many independent guesses: (targets, seeds, ...) tensors in, moved ones out; single guesses can be reset."""

from typing import Literal, Protocol

import torch
from torch import Tensor

from adversary.lbfgs import BatchedLBFGS


class Optimizer(Protocol):
    """One step for all guesses."""

    def step(self, variables: list[Tensor], slopes: list[Tensor], loss: Tensor) -> list[Tensor]:
        """The moved variables, given their slopes and the losses (targets, seeds)."""
        ...

    def reset(self, guesses: Tensor) -> None:
        """Forget some guesses, bool (targets, seeds): they were started anew."""
        ...


class Adam:
    """Adam (Kingma and Ba 2015) with a clock for each guess, and the step decay of Inverting Gradients."""

    def __init__(self, lr: float, iterations: int, decay: bool) -> None:
        self.lr, self.count = lr, 0
        self.milestones = [iterations * part // 8 for part in (3, 5, 7)] if decay else []
        self._first: list[Tensor] = []
        self._second: list[Tensor] = []
        self._age = torch.empty(0)

    def step(self, variables: list[Tensor], slopes: list[Tensor], loss: Tensor) -> list[Tensor]:
        """One Adam step."""
        if not self._first:
            self._first = [torch.zeros_like(v) for v in variables]
            self._second = [torch.zeros_like(v) for v in variables]
            self._age = variables[0].new_zeros(variables[0].shape[:2])
        rate = self.lr * 0.1 ** sum(self.count >= at for at in self.milestones)
        self.count += 1
        self._age = self._age + 1
        moved = []
        for variable, slope, first, second in zip(variables, slopes, self._first, self._second, strict=True):
            first.lerp_(slope, 0.1)
            second.mul_(0.999).addcmul_(slope, slope, value=0.001)
            age = self._age.view(*self._age.shape, *[1] * (variable.ndim - 2))
            size = (second / (1 - 0.999**age)).sqrt_().add_(1e-8)
            moved.append(variable - rate * (first / (1 - 0.9**age)) / size)
        return moved

    def reset(self, guesses: Tensor) -> None:
        """Forget the moments of some guesses."""
        for moment in (*self._first, *self._second):
            moment[guesses] = 0
        self._age[guesses] = 0


class LBFGS:
    """L-BFGS on each guess by itself, all its variables joined into one vector."""

    def __init__(self, lr: float) -> None:
        self._inner = BatchedLBFGS(lr)

    def step(self, variables: list[Tensor], slopes: list[Tensor], loss: Tensor) -> list[Tensor]:
        """One L-BFGS step."""
        point, slope = (torch.cat([part.flatten(2) for part in parts], dim=2) for parts in (variables, slopes))
        moved = self._inner.step(point.flatten(0, 1), loss.flatten(), slope.flatten(0, 1)).view_as(point)
        parts = moved.split([variable[0, 0].numel() for variable in variables], dim=2)
        return [part.reshape(variable.shape) for variable, part in zip(variables, parts, strict=True)]

    def reset(self, guesses: Tensor) -> None:
        """Forget the history of some guesses."""
        self._inner.reset(guesses.flatten())


def make_optimizer(name: Literal["adam", "lbfgs"], lr: float, iterations: int, decay: bool) -> Optimizer:
    """The optimiser of an attack."""
    return LBFGS(lr) if name == "lbfgs" else Adam(lr, iterations, decay)
