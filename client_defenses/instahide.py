"""InstaHide: mixtures of several examples with random signs on the pixels (Huang et al. 2020), since broken."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from client_defenses.base import Defense, Memory
from client_defenses.mixup import soft_labels
from fl_app.core.local import Step
from fl_app.core.space import Space
from fl_app.core.spec import SpecError
from fl_app.core.text import Tokens


@dataclass(frozen=True, kw_only=True)
class InstaHide(Defense):
    """Mixes each example with k - 1 others of its batch, then flips random pixels around a center; broken by Carlini (2021).

    The inside-dataset variant, with partners from the batch, as a client sees no more at a time. Weights are uniform among
    those that sum to 1 and are at most c1. center="mean": around the mean that the model's first layer subtracts, which is
    a sign flip of what the network sees, as in the authors' code; pixels can then leave [0, 1]. A number such as 0.5 (also
    what "mean" means without such a layer) turns x into 1 - x and does not. A batch smaller than k is mixed as a whole, and
    a batch of one only flipped.
    """

    k: Annotated[int, Field(ge=1, le=16)] = 4
    c1: Annotated[float, Field(gt=0, le=1)] = 0.65
    center: Annotated[float, Field(ge=0, le=1)] | Literal["mean"] = "mean"
    flip: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k > 1 and self.k * self.c1 < 1:
            raise SpecError(f"instahide: {self.k} weights of at most c1={self.c1} cannot sum to 1; raise c1 or k")

    def within(self, space: Space) -> "InstaHide":
        """The defense itself; it is for numbers."""
        if isinstance(space, Tokens):
            raise SpecError("instahide flips the signs of pixels, and these examples are text")
        return self

    def on_batch(self, step: Step, memory: Memory) -> Step:
        """Mix and flip the batch; the labels become probabilities (batch, classes)."""
        members, weights = self.members(len(step.x), memory), self.weights(len(step.x), memory)
        if weights.shape[1] > 1:
            y = soft_labels(step)
            table = torch.zeros(len(step.x), len(step.x)).scatter_(1, members, weights).to(y)
            step = step._replace(x=(table @ step.x.flatten(1)).view_as(step.x), y=table @ y)
        if self.flip:
            center = self._center(step)
            step = step._replace(x=torch.where(memory.uniform(step.x) < 0.5, 2 * center - step.x, step.x))
        return step

    def _center(self, step: Step) -> Tensor | float:
        if self.center != "mean":
            return self.center
        layer = getattr(step.model, "normalize", None)
        return 0.5 if layer is None else layer.mean.to(step.x)

    def members(self, batch: int, memory: Memory) -> Tensor:
        """Which examples are in each mixture: the example itself and k - 1 different others, int64 (batch, min(k, batch))."""
        order = torch.rand(batch, batch, generator=memory.rng)
        return order.fill_diagonal_(-1).argsort(1)[:, : self.k]

    def weights(self, batch: int, memory: Memory) -> Tensor:
        """The weights of each mixture's members, float32 (batch, min(k, batch)): rows sum to 1, entries are at most c1.

        Uniform on that part of the simplex, by rejection; where c1 leaves little of it, what is left over below c1 is
        drawn instead, which has the same distribution and is rarely refused.
        """
        k = min(self.k, batch)
        bound = max(self.c1, 1 / k)
        spare = max(0.0, k * bound - 1)
        mirrored = spare < 1
        limit = bound / max(spare, 1e-9) if mirrored else bound
        found = _simplex(batch, k, memory)
        while bool((refused := found.amax(1) > limit).any()):
            found[refused] = _simplex(int(refused.sum()), k, memory)
        return bound - spare * found if mirrored else found


def _simplex(rows: int, k: int, memory: Memory) -> Tensor:
    """Uniform draws from the weights that sum to 1, float32 (rows, k)."""
    draws = -torch.log1p(-torch.rand(rows, k, generator=memory.rng))
    return draws / draws.sum(1, keepdim=True).clamp_min(1e-30)
