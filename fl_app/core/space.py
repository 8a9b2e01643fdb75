"""What an example is: an image, a row (`core.table`), text (`core.text`); its borders, blind draws and checks."""

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
