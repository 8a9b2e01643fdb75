"""How far a reconstruction explains an update, on the entries that its attacker can count on: what `standard` chooses by."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from adversary.base import Attack, Guess
from adversary.entries import Ignoring, Masked
from adversary.objectives import Cosine, Objective, Relative
from adversary.presets import Preset
from adversary.search.matching import Matching
from adversary.spaces.untrained import Untrained
from fl_app.core.local import Tensors, local_update
from fl_app.core.observation import Observation, Task

CERTAIN = 1e-6
"""Relative squared distance below which a reconstruction explains an update, so that nobody need search on (ours).

At 1e-4 an image of LeNet is at 24 to 36 dB and Gauss-Newton goes on to 40 and more.
"""


@dataclass(frozen=True)
class Answer:
    """A reconstruction x (examples, *shape), y (examples,), and how much of the update it leaves unexplained."""

    x: Tensor
    y: Tensor
    distance: float
    """One minus the cosine of its update with what was seen."""
    certain: bool = False
    likely: bool = False
    """Whether it was found as the most likely one, given the law of the defense and public examples."""
    drawn: bool = False
    """Whether an untrained network drew it."""


@dataclass(frozen=True)
class Evidence:
    """A target's update, and an objective that looks at the entries of it that count."""

    seen: Observation
    task: Task
    entries: Objective

    @classmethod
    def known_to(cls, members: Iterable[Attack], seen: Observation, task: Task) -> "Evidence":
        """By the entries that the first of some members who leaves any out looks at: what a defense kept is not compared."""
        searched = (search.objective for search in map(search_of, members) if search is not None)
        entries = next((one for one in searched if isinstance(one, Masked | Ignoring)), Cosine())
        return cls(seen, task, entries.fitted(seen.update, task))

    @cached_property
    def determined(self) -> bool:
        """Whether what counts says as much as there are pixels: if not, an image can explain an update and be another one."""
        kept = {name: self.seen.update[name] for name in self.entries.kept(self.seen.update)}
        return determined(kept, self.seen.num_examples * prod(self.task.space.shape))

    def of(self, guess: Guess, attack: Attack | None = None) -> Answer:
        """What was guessed of the target alone, by whom, and how far it explains the update."""
        x = self.task.space.clamp(guess.x)
        update = local_update(self.task.model, self.seen.params, x, guess.y, self.seen.rule)
        seen = {name: self.seen.update[name] for name in self.entries.kept(self.seen.update)}
        apart, relative = (measured(self.entries, by)(update, seen, 0.0) for by in (Cosine(), Relative()))
        search = None if attack is None else search_of(attack)
        return Answer(
            x,
            guess.y,
            torch.nan_to_num(apart, nan=2.0).item(),
            certain=self.determined and bool(relative < CERTAIN),
            likely=search is not None and search.space.trained,
            drawn=search is not None and isinstance(search.space, Untrained),
        )


def search_of(attack: Attack) -> Matching | None:
    """The search that an attack is; None if it is none."""
    if isinstance(attack, Preset):
        return attack.matching()
    return attack if isinstance(attack, Matching) else None


def determined(update: Tensors, unknowns: int) -> bool:
    """Whether an update has as many entries other than zero that do not follow from others as there are unknowns.

    A matrix (m, n) of rank r says r (m + n - r) numbers: the gradient of a linear layer has at most the rank of its batch.
    """
    left = unknowns
    for value in sorted(update.values(), key=lambda one: (one.ndim == 2, one.numel())):  # what takes time comes last
        if left <= 0:
            break
        numbers = int(value.count_nonzero())
        if value.ndim == 2:
            rank = int(torch.linalg.matrix_rank(value))
            numbers = min(numbers, rank * (sum(value.shape) - rank))
        left -= numbers
    return left <= 0


def measured(entries: Objective, by: Objective) -> Objective:
    """Another objective on the entries that one looks at."""
    match entries:
        case Masked():
            return Masked(objective=measured(entries.objective, by))
        case Ignoring():
            return Ignoring(objective=measured(entries.objective, by), layers=entries.layers)
    return by
