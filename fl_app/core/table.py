"""Rows of a table as a space: each column a number or a category, and the floats in [0, 1] that stand for them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from fl_app.core.spec import suggest

TOLERANCE = 0.05
"""How far a number may be off to count as right, as a share of its column's range (ours)."""


@dataclass(frozen=True)
class Column:
    """A public fact of a table: a column's name, and either its categories or the bounds of its numbers."""

    name: str
    values: tuple[str, ...] = ()
    """The categories, each a float of its own (one-hot); empty: a number."""
    low: float = 0.0
    high: float = 1.0
    """Bounds of a number, which become 0 and 1."""

    @property
    def width(self) -> int:
        """How many floats stand for a cell."""
        return len(self.values) or 1


@dataclass(frozen=True)
class Rows:
    """Rows of a table, (floats,): numbers scaled to [0, 1] by their bounds, categories one-hot."""

    columns: tuple[Column, ...]

    @cached_property
    def places(self) -> dict[str, slice]:
        """Where the floats of each column are."""
        found, start = {}, 0
        for column in self.columns:
            found[column.name] = slice(start, start + column.width)
            start += column.width
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """(floats,)."""
        return (sum(column.width for column in self.columns),)

    @cached_property
    def categories(self) -> list[slice]:
        """Where the one-hot blocks are."""
        return [self.places[column.name] for column in self.columns if column.values]

    def clamp(self, x: Tensor) -> Tensor:
        """The nearest rows: numbers cut off at their bounds, of each category the most likely value."""
        found = self.hull(x)
        for block in self.categories:
            found[..., block] = F.one_hot(x[..., block].argmax(-1), block.stop - block.start).to(x)
        return found

    def hull(self, x: Tensor) -> Tensor:
        """Floats cut off at [0, 1]; a new tensor."""
        return x.clamp(0, 1)

    def noise(self, number: int, rng: torch.Generator) -> Tensor:
        """Uniform numbers and categories."""
        return self.clamp(torch.rand((number, *self.shape), generator=rng))

    def holds(self, x: Tensor) -> bool:
        """Whether these are rows: numbers within their bounds, one value of each category."""
        if x.shape[-1:] != self.shape or not x.is_floating_point() or not bool(((x >= 0) & (x <= 1)).all()):
            return False
        return torch.equal(self.clamp(x), x)

    def cells(self, x: Tensor) -> Tensor:
        """Rows (..., floats) -> their cells (..., columns): a number in [0, 1], or the place of a category."""
        parts = [x[..., place] for place in self.places.values()]
        pairs = zip(self.columns, parts, strict=True)
        return torch.stack([part.argmax(-1).to(x) if column.values else part[..., 0] for column, part in pairs], dim=-1)

    def encode(self, cells: Tensor) -> Tensor:
        """Cells (..., columns) -> rows (..., floats), the opposite of `cells`."""
        parts = []
        for column, cell in zip(self.columns, cells.unbind(-1), strict=True):
            parts.append(F.one_hot(cell.long(), column.width).to(cells) if column.values else cell[..., None])
        return torch.cat(parts, dim=-1)

    def filled(self, x: Tensor, column: str) -> Tensor:
        """Rows (..., floats) with each value of a category in turn, (..., values, floats)."""
        values = self.values(column)
        found = x.unsqueeze(-2).repeat(*[1] * (x.ndim - 1), len(values), 1)
        found[..., self.places[column]] = torch.eye(len(values)).to(x)
        return found

    def values(self, column: str) -> tuple[str, ...]:
        """The values of a category; ValueError if there is none of that name."""
        return values_of(self.columns, column)

    def right(self, x: Tensor, truth: Tensor, tolerance: float = TOLERANCE) -> Tensor:
        """Which cells of x (..., floats) are those of the truth, bool (..., columns): equal categories, numbers nearly so."""
        gap = (self.cells(x) - self.cells(truth)).abs()
        allowed = gap.new_tensor([0.5 if column.values else tolerance + 1e-6 for column in self.columns])
        return gap <= allowed

    def text(self, row: Tensor) -> list[str]:
        """The cells of one row (floats,) for people."""
        return [self._said(column, cell) for column, cell in zip(self.columns, self.cells(row).tolist(), strict=True)]

    @staticmethod
    def _said(column: Column, cell: float) -> str:
        if column.values:
            return column.values[int(cell)]
        range_ = column.high - column.low
        return f"{round(column.low + cell * range_, max(0, 3 - math.floor(math.log10(range_)))):g}"  # a thousandth of it


def values_of(columns: Sequence[Column], name: str) -> tuple[str, ...]:
    """The values of a category among some columns; ValueError if there is none of that name."""
    known = {one.name: one.values for one in columns if one.values}
    if name not in known:
        raise ValueError(f"there is no column of categories '{name}'; {suggest(name, known)}")
    return known[name]


def number_column(name: str, values: Sequence[float], bounds: tuple[float, float] | None = None) -> Column:
    """A column of numbers with these bounds, or with the smallest and largest value; one that never changes is a ValueError."""
    low, high = bounds if bounds is not None else (min(values), max(values))
    if not low < high:
        raise ValueError(f"the column '{name}' needs two bounds, the lower first, and has {low:g} and {high:g}")
    return Column(name, low=low, high=high)
