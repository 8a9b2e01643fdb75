"""What an example is: an image, a row (`core.table`), text (`core.text`); its borders, blind draws and checks."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fl_app.core.table import Column, Rows, values_of


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
    attributes: tuple[Column, ...] = ()
    """What a data set says of its images beside their classes: columns of categories, no part of the image."""

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


def attribute_values(space: Space, column: str) -> tuple[str, ...]:
    """The values of a column of categories, of rows or beside images; ValueError if there is none of that name."""
    columns = space.columns if isinstance(space, Rows) else space.attributes if isinstance(space, Images) else ()
    if not columns:
        raise ValueError(f"these examples have no attributes, and so none that is called '{column}' (docs/data.md)")
    return values_of(columns, column)


def attribute_of(space: Space, column: str, x: Tensor, beside: Tensor | None) -> Tensor:
    """Which value of a column each example x (n, *shape) has, int64 (n,): a cell of a row, or what stands beside an image.

    `beside` are the places of the values of all columns, int64 (n, columns), of images.
    """
    attribute_values(space, column)
    if isinstance(space, Rows):
        return x[..., space.places[column]].argmax(-1)
    assert isinstance(space, Images)
    if beside is None:
        raise ValueError(f"the attribute '{column}' of these images is not known")
    return beside[:, [one.name for one in space.attributes].index(column)]
