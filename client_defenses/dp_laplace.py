"""Laplace noise on a clipped gradient."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from client_defenses.base import Defense, Memory
from client_defenses.tools.clipping import clip
from client_defenses.tools.noise import Noise
from client_defenses.tools.precision import narrowed, widened
from fl_app.core.local import Tensors


@dataclass(frozen=True, kw_only=True)
class DPLaplace(Defense):
    """Clips the whole batch's gradient to norm `clip` (None: not at all) and adds Laplace(0, scale) to every entry.

    It promises no epsilon: the Laplace mechanism needs a bound of the L1 norm, and an L2 clip bounds that only by
    sqrt(entries) * clip.
    """

    scale: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-2
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 1.0

    def transform(self, grads: Tensors, memory: Memory) -> Tensors:
        """Clip, then add noise."""
        sent = self.expected(widened(grads))
        if self.scale > 0:
            sent = {name: value + self.scale * laplace(memory.uniform(value)) for name, value in sent.items()}
        return narrowed(sent, grads)

    def expected(self, grads: Tensors) -> Tensors:
        """The clipped gradient."""
        return grads if self.clip is None else clip(grads, self.clip)

    def noise_law(self) -> Noise | None:
        """Of the clipped gradient."""
        return Noise(kind="laplace", scale=self.scale, clip=self.clip) if self.scale > 0 else None


def laplace(uniform: Tensor) -> Tensor:
    """Standard Laplace draws from draws of U[0, 1), float32 of any shape, by the inverse distribution function."""
    # torch draws multiples of 2^-24: moved to odd multiples between -1 and 1 (all of them exact in float32) they are
    # symmetric and reach neither end, where the logarithm is infinite.
    centred = 2 * uniform - (1 - 2.0**-24)
    return torch.copysign(-torch.log1p(-centred.abs()), centred)
