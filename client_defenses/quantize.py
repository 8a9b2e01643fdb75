"""Gradient quantisation: each tensor on a uniform grid."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from client_defenses.base import Memory
from client_defenses.tools.error_feedback import Compressor, straight_through
from fl_app.core.local import Tensors


@dataclass(frozen=True, kw_only=True)
class Quantize(Compressor):
    """Rounds each tensor to an even grid of `bits` bits over [-max|g|, max|g|], to the nearest level or at random.

    `stochastic` rounding goes up with the probability that makes it unbiased. 32 bits are the float32 value itself, and
    above 24 bits float32 is the coarser grid.
    """

    bits: Annotated[int, Field(ge=1, le=32)] = 8
    stochastic: bool = False

    def compress(self, grads: Tensors, memory: Memory) -> Tensors:
        """Round each tensor."""
        return {
            name: quantize(value, self.bits, memory.uniform(value) if self.stochastic and self.bits < 32 else None)
            for name, value in grads.items()
        }

    def expected(self, grads: Tensors) -> Tensors:
        """The rounded gradient with the derivative of the identity; unbiased rounding is expected to change nothing."""
        if self.stochastic:
            return grads
        return straight_through(grads, {name: quantize(value, self.bits) for name, value in grads.items()})


def quantize(value: Tensor, bits: int, uniform: Tensor | None = None) -> Tensor:
    """The levels nearest to each entry, or with draws of U[0, 1) an unbiased choice of the two around it; any shape.

    Of the 2^bits codes one stays unused so that zero is a level: on a grid without it all exact zeros would move one way.
    One bit has only the two ends, and then an exact zero stays zero unless it is rounded at random.
    """
    if bits == 32 or value.numel() == 0:
        return value
    largest = value.abs().amax()
    unit = value / torch.where(largest > 0, largest, 1)  # in [-1, 1]
    if bits == 1:
        ends = torch.sign(unit) if uniform is None else torch.where(uniform < (unit + 1) / 2, 1.0, -1.0).to(unit)
        return ends * largest
    steps = (1 << bits - 1) - 1  # levels on each side of zero
    level = unit * steps
    if uniform is None:
        level = torch.round(level)
    else:
        below = torch.floor(level)
        level = below + (uniform < level - below)  # not floor(level + uniform), which rounds beyond the range at many bits
    return level / steps * largest
