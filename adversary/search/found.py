"""What a search ends with: its answer, and the variables from which another search can go on."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from adversary.base import Guess
from adversary.search.variables import like
from fl_app.core.local import Tensors


class Found(NamedTuple):
    """An answer, the variables (targets, 1, ...) that it came from, and what they leave unexplained, (targets,)."""

    guess: Guess
    variables: Tensors
    distance: Tensor
    every: Tensors
    """The variables of all seeds, (targets, seeds, ...)."""

    def where_better(self, other: Self) -> Self:
        """What explains the update better of each target, or as well; the variables stay this search's own."""
        better = self.distance <= other.distance
        pairs = zip(self.guess[:3], other.guess[:3], strict=True)
        x, y, loss = (torch.where(like(better, one), one, before) for one, before in pairs)
        return self._replace(guess=Guess(x, y, loss), distance=torch.where(better, self.distance, other.distance))

    def take(self, again: Self, places: Sequence[int]) -> None:
        """Replace what another attempt at the targets in some places did better by the attack's own loss."""
        better = [(i, place) for place, i in enumerate(places) if not again.guess.loss[place] >= self.guess.loss[i]]
        for mine, other in zip(self._parts(), again._parts(), strict=True):
            for i, place in better:
                mine[i] = other[place]

    def _parts(self) -> list[Tensor]:
        return [*self.guess[:3], self.distance, *self.variables.values(), *self.every.values()]
