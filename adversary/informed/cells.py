"""Defenses that send less than a number per entry (quantize, sign, prune): what is sent says in which interval it lies."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from adversary.base import Facts
from adversary.informed import sparse
from adversary.informed.expected import Expected
from adversary.informed.variant import Variant, first_order, most_likely, with_labels, with_observer
from adversary.objectives import TINY, Objective
from adversary.search.matching import Matching
from client_defenses.prune import Prune
from client_defenses.quantize import Quantize
from client_defenses.sign import Sign
from client_defenses.tools.error_feedback import Compressor
from fl_app.core.local import Tensors


class Cell(NamedTuple):
    """Where the entries of a tensor lie, and the size in units of which a distance from there counts."""

    lower: Tensor
    upper: Tensor
    unit: Tensor


@dataclass(frozen=True, kw_only=True)
class Cells(Objective):
    """-log of the probability that logistic noise of width tau leaves each entry in its cell: the sum over entries.

    A smooth stand-in for a step, so that L-BFGS works; tau falls by stages. Within a cell it pulls to the middle, which is
    nearer to a typical gradient than the edge where a hinge stops.
    """

    memory: bool = False
    """Whether clients remember what they left out and add it to their next gradient; then all rounds of a client count."""
    TAUS: ClassVar[tuple[float, ...]] = (0.1, 0.03, 0.01, 0.003)
    stages: ClassVar[int] = len(TAUS)

    @abstractmethod
    def cells(self, seen: Tensors) -> dict[str, Cell]:
        """The cells that an update was sent from, by parameter."""

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The negative log-likelihood."""
        tau = self.TAUS[min(round(progress * self.stages), self.stages - 1)]
        return torch.stack([_outside(dummy[name], cell, tau) for name, cell in self.cells(seen).items()]).sum()

    def over_rounds(self, dummies: Sequence[Tensors], seen: Sequence[Tensors], progress: float) -> Tensor:
        """The sum over rounds: each has cells of its own, also where only its rounding at random tells it from the others.

        With a memory a round compresses all gradients so far less all that was sent before, if these are a client's first
        rounds. So with each round the cells get narrower in units of the gradient.
        """
        likelihoods = []
        total = {name: torch.zeros_like(value) for name, value in seen[0].items()}
        for dummy, sent in zip(dummies, seen, strict=True):
            total = {name: value + dummy[name] for name, value in total.items()} if self.memory else dummy
            likelihoods.append(self(total, sent, progress))
            total = {name: total[name] - value for name, value in sent.items()}
        return torch.stack(likelihoods).sum()


@dataclass(frozen=True, kw_only=True)
class Grid(Cells):
    """The cells of `quantize`: half a step around each level, as far as the largest entry, which was sent as it is."""

    bits: Annotated[int, Field(ge=1, le=32)]
    stochastic: bool = False
    """Rounded at random: a whole step around each level."""

    def cells(self, seen: Tensors) -> dict[str, Cell]:
        """Half a step around each level; of one bit, the signs."""
        found = {}
        for name, value in seen.items():
            largest = value.abs().amax()
            step = largest / ((1 << self.bits - 1) - 1) if self.bits > 1 else 2 * largest
            reach = step if self.stochastic else step / 2
            found[name] = Cell((value - reach).clamp_min(-largest), (value + reach).clamp_max(largest), step + TINY)
        return found


@dataclass(frozen=True, kw_only=True)
class Signs(Cells):
    """The cells of `sign`: above or below zero; and the mean size of a tensor's entries, where it was sent."""

    scale: Literal["mean", "none"] = "mean"

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The negative log-likelihood; without the mean size only the ratios of entries count."""
        sizes = {name: dummy[name].abs().mean() + TINY for name in seen}
        if self.scale == "none":
            return super().__call__({name: dummy[name] / sizes[name] for name in seen}, seen, progress)
        tau = self.TAUS[min(round(progress * self.stages), self.stages - 1)]
        gaps = [(sizes[name] / (value.abs().amax() + TINY) - 1) / tau for name, value in seen.items()]
        return super().__call__(dummy, seen, progress) + torch.stack(gaps).square().sum() / 2

    def cells(self, seen: Tensors) -> dict[str, Cell]:
        """Half lines, but for exact zeros."""
        far = torch.inf
        return {
            name: Cell(torch.where(value < 0, -far, 0.0), torch.where(value > 0, far, 0.0), value.abs().amax() + TINY)
            for name, value in seen.items()
        }


@dataclass(frozen=True, kw_only=True)
class Pruned(Cells):
    """The cells of `prune`: what was sent is exact, and the rest is smaller than the smallest that was sent."""

    scope: Literal["global", "tensor"] = "global"

    def cells(self, seen: Tensors) -> dict[str, Cell]:
        """Points and an interval around zero."""
        far = torch.inf
        least = {name: torch.where(value == 0, far, value.abs()).amin() for name, value in seen.items()}
        if self.scope == "global":
            least = dict.fromkeys(seen, torch.stack(list(least.values())).amin())
        # A tensor of which nothing was sent has no bound, and then says nothing.
        return {
            name: Cell(
                torch.where(value == 0, -least[name], value),
                torch.where(value == 0, least[name], value),
                torch.where(least[name].isfinite(), least[name], 1.0),
            )
            for name, value in seen.items()
        }


def _outside(value: Tensor, cell: Cell, tau: float) -> Tensor:
    width = tau * cell.unit
    return -(F.logsigmoid((value - cell.lower) / width) + F.logsigmoid((cell.upper - value) / width)).sum()


def cells_of(defense: Compressor) -> Cells | None:
    """The cells that a defense sends from; None if it is not known what they are."""
    match defense:
        case Quantize():
            return Grid(bits=defense.bits, stochastic=defense.stochastic, memory=defense.memory)
        case Sign():
            return Signs(scale=defense.scale, memory=defense.memory)
        case Prune():
            return Pruned(scope=defense.scope, memory=defense.memory)
    return None


def variants(defense: Compressor, facts: Facts) -> list[Variant]:
    """The most likely image whose gradients lie in the intervals that were sent; or matches through the compression."""
    found = sparse.variants(defense, facts) if isinstance(defense, Prune) else [straight_through()]
    cells = cells_of(defense)
    if cells is not None:
        why = "the most likely image of its class whose gradients lie in the intervals that were sent, given public examples"
        likely = most_likely(cells, facts, why)
        if defense.memory and facts.rounds > 1 and not facts.repeats:
            likely = likely._replace(why_not="what was left out of earlier rounds is not known where examples do not repeat")
        found.insert(0, likely)
    return found


def straight_through() -> Variant:
    """Needs no public examples; on 4 digits it was as good as a search for the smoothest image within the cells."""

    def change(attack: Matching) -> Matching:
        return first_order(with_labels(with_observer(attack, Expected()), "rows"))

    return Variant("matches through the quantiser, whose gradient is passed straight through", change, "straight-through")
