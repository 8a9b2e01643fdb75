"""What an example is: an image in [0, 1], token ids, a row (`core.table`). Clamping, blind draws, checks are its business."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Space(Protocol):
    """A set of examples of one shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        ...

    def clamp(self, x: Tensor) -> Tensor:
        """The nearest examples, (..., *shape)."""
        ...

    def hull(self, x: Tensor) -> Tensor:
        """The nearest that a search may pass through on its way to an example, (..., *shape)."""
        ...

    def noise(self, number: int, rng: torch.Generator) -> Tensor:
        """Blind draws, (number, *shape)."""
        ...

    def holds(self, x: Tensor) -> bool:
        """Whether all of (..., *shape) are examples."""
        ...


@dataclass(frozen=True)
class Images:
    """Real numbers in [0, 1], mostly (channels, height, width)."""

    shape: tuple[int, ...]

    def clamp(self, x: Tensor) -> Tensor:
        """The nearest image."""
        return x.clamp(0, 1)

    hull = clamp

    def noise(self, number: int, rng: torch.Generator) -> Tensor:
        """Draws from U(0, 1)."""
        return torch.rand((number, *self.shape), generator=rng)

    def holds(self, x: Tensor) -> bool:
        """Whether the values are numbers in [0, 1] and the shape is right."""
        fits = x.shape[-len(self.shape) :] == self.shape and x.is_floating_point()
        return fits and bool(((x >= 0) & (x <= 1)).all())  # False for NaN


@dataclass(frozen=True)
class Tokens:
    """Rows of token ids, int64 (length,), each below the size of the vocabulary."""

    vocabulary: int
    length: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return (self.length,)

    def clamp(self, x: Tensor) -> Tensor:
        """The nearest ids."""
        return x.round().clamp(0, self.vocabulary - 1).long() if x.is_floating_point() else x.clamp(0, self.vocabulary - 1)

    hull = clamp

    def noise(self, number: int, rng: torch.Generator) -> Tensor:
        """Uniform ids."""
        return torch.randint(self.vocabulary, (number, self.length), generator=rng)

    def holds(self, x: Tensor) -> bool:
        """Whether the values are ids of the vocabulary and the shape is right."""
        fits = x.shape[-1:] == self.shape and x.dtype == torch.int64
        return fits and bool(((x >= 0) & (x < self.vocabulary)).all())
