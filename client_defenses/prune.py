"""Gradient pruning: only the largest entries are sent."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from client_defenses.base import Memory
from client_defenses.tools.error_feedback import Compressor
from fl_app.core.local import Tensors


@dataclass(frozen=True, kw_only=True)
class Prune(Compressor):
    """Zeroes the share `ratio` of smallest |g|, of the whole gradient or of each tensor; `memory`: sends it later."""

    ratio: Annotated[float, Field(ge=0, le=1)] = 0.9
    scope: Literal["global", "tensor"] = "global"

    def _groups(self, grads: Tensors) -> list[Tensors]:
        return [grads] if self.scope == "global" else [{name: value} for name, value in grads.items()]

    def compress(self, grads: Tensors, memory: Memory) -> Tensors:
        """Zero exactly floor(ratio * entries) of each group."""
        sent: Tensors = {}
        for group in self._groups(grads):
            sent |= without_smallest(group, {name: value.abs() for name, value in group.items()}, self.ratio)
        return sent

    def expected(self, grads: Tensors) -> Tensors:
        """The same without a memory, up to ties at the threshold; the derivative by kept entries is one."""
        kept: Tensors = {}
        for group in self._groups(grads):
            sizes = flat({name: value.detach().abs() for name, value in group.items()})
            count = share(self.ratio, sizes.numel())
            bound = sizes.kthvalue(count).values if count else -1.0
            kept |= {name: torch.where(value.abs() > bound, value, 0) for name, value in group.items()}
        return kept


def share(ratio: float, size: int) -> int:
    """floor(ratio * size) as written: 0.29 of 100 are 29, though their product in floating point is below."""
    return int(round(ratio * size, 6))


def flat(tensors: Tensors) -> Tensor:
    """All entries in order: (entries,)."""
    return torch.cat([value.reshape(-1) for value in tensors.values()]) if tensors else torch.zeros(0)


def smallest(scores: Tensor, count: int) -> Tensor:
    """Which `count` of the scores (n,) are the smallest: booleans (n,); of equal scores the first ones are taken."""
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    bound = scores.kthvalue(count).values
    chosen = scores < bound
    ties = (scores == bound).nonzero()[: count - int(chosen.sum()), 0]
    chosen[ties] = True
    return chosen


def without_smallest(grads: Tensors, scores: Tensors, ratio: float) -> Tensors:
    """The gradient with exactly floor(ratio * entries) zeros, where the scores of the same names and shapes are smallest."""
    all_scores = flat(scores)
    chosen = smallest(all_scores, share(ratio, all_scores.numel()))
    parts = chosen.split([value.numel() for value in grads.values()])
    return {
        name: value.masked_fill(part.view(value.shape), 0) for (name, value), part in zip(grads.items(), parts, strict=True)
    }
