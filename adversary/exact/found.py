"""Examples that were read off an update: often fewer than are in it."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from adversary.base import Guess
from fl_app.core.observation import Observation, Task

GREY = 0.5
"""Stands for an example that was not found."""


class Found(NamedTuple):
    """Candidates (n, *shape) of one target, and how much speaks for each, (n,)."""

    x: Tensor
    evidence: Tensor


def distinct(found: Found, near: float, most: int) -> Found:
    """The candidates with the most evidence, each once: none is nearer to a better one, as a root mean square over pixels."""
    x = found.x.flatten(1)
    close = torch.cdist(x, x) < near * x.shape[1] ** 0.5
    left, chosen = torch.ones(len(x), dtype=torch.bool, device=x.device), list[int]()
    while len(chosen) < most and bool(left.any()):
        chosen.append(int(found.evidence.masked_fill(~left, -torch.inf).argmax()))
        left &= ~close[chosen[-1]]
        left[chosen[-1]] = False
    return Found(found.x[chosen], found.evidence[chosen])


def guess_of(found: Sequence[Found], seen: Sequence[Observation], task: Task) -> Guess:
    """As many candidates as there are examples, those with the most evidence, then grey; the loss is the share of grey.

    Classes are what the model itself takes the images for: a read-out says nothing of them.
    """
    answers = [_one(each, one, task) for each, one in zip(found, seen, strict=True)]
    x, y, loss = (torch.stack(column) for column in zip(*answers, strict=True))
    return Guess(x, y, loss)


def _one(found: Found, seen: Observation, task: Task) -> tuple[Tensor, Tensor, Tensor]:
    number = seen.num_examples
    best = found.evidence.argsort(descending=True, stable=True)[:number]
    x = torch.full((number, *task.space.shape), GREY).to(next(iter(seen.params.values())))
    x[: len(best)] = task.space.clamp(found.x[best].to(x))
    with torch.no_grad():
        y = functional_call(task.model, seen.params, (x,)).argmax(1)
    return x, y, x.new_tensor(1 - len(best) / number)
