"""What a data set is in memory: uint8 images, rows of a table as floats, or ids of text, and classes, once per process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fl_app.core.sources import Source
from fl_app.core.space import Images, Space
from fl_app.core.table import Column, Rows
from fl_app.core.text import Tokens, Vocabulary

Arrays = dict[str, Tensor]
"""train_x, test_x: uint8 (n, channels, height, width), rows as float32 (n, floats), or text as int64 (n, length).

train_y, test_y: int64 (n,). val_x, val_y where published; public_x, public_y: of text, public text in the same form.
Images may have attributes, train_a, test_a, val_a: int64 (n, columns), places of values.
"""
LEAST_SPREAD = 0.1
"""Of a float of a row: a rare category would else be fed to models at many times the size of all others (ours)."""


class DataError(ValueError):
    """Data that cannot be had or used; the message says what was tried and what to do."""


@dataclass(frozen=True)
class Examples:
    """Images x: uint8 (n, channels, height, width), rows: float32 (n, floats), text: int64 (n, length); y: int64 (n,)."""

    x: Tensor
    y: Tensor
    a: Tensor | None = None
    """Of images with attributes: the place of each one's value in every column, int64 (n, columns)."""

    def __len__(self) -> int:
        return len(self.y)

    def at(self, positions: Tensor | slice) -> tuple[Tensor, Tensor]:
        """The examples at these positions, with x as float32 in [0, 1]; of text, ids."""
        x = self.x[positions]
        return (x.float().div_(255) if x.dtype == torch.uint8 else x.clone()), self.y[positions]

    def part(self, positions: Tensor | slice) -> "Examples":
        """Some of them."""
        return Examples(self.x[positions], self.y[positions], None if self.a is None else self.a[positions])


@dataclass(frozen=True)
class Dataset:
    """A data set with its published split, and the statistics of its training examples by channel, or by float of a row."""

    name: str
    train: Examples
    test: Examples
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    validation: Examples | None = None
    """Only where the data set publishes one."""
    columns: tuple[Column, ...] = ()
    """Of a table: what its floats stand for."""
    attributes: tuple[Column, ...] = ()
    """Of images: what the columns beside them are."""
    vocabulary: Vocabulary | None = None
    """Of text: what its ids stand for."""
    public: Examples | None = None
    """Of text: public text in the same form, from another source."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """What models are built for: (channels, height, width), (floats,), or of text (length, vocabulary)."""
        shape = tuple(self.train.x.shape[1:])
        return shape if self.vocabulary is None else (*shape, len(self.vocabulary))

    @property
    def space(self) -> Space:
        """What an example is."""
        if self.vocabulary is not None:
            return Tokens(self.vocabulary, self.train.x.shape[1])
        return Rows(self.columns) if self.columns else Images(self.input_shape, self.attributes)


@dataclass(frozen=True)
class Recipe:
    """How one data set comes to this machine: where from, how its files are read, and how to know it is right."""

    key: str
    read: Callable[[Path], Arrays]
    num_classes: int
    sources: tuple[Source, ...] = ()
    digest: str | None = None
    """`digest_of` the arrays, whatever source they came from; None where the sources carry checksums of their own."""
    paths: str = ""
    """Of a folder of somebody's own: a checksum of the relative paths of its images; of a table, of its columns."""
    columns: tuple[Column, ...] = ()
    """Of a table: its columns, which are public."""
    attributes: tuple[Column, ...] = ()
    """Of images with attributes: their columns of categories, whose names and values are public."""
    vocabulary: Callable[[], Vocabulary] | None = None
    """Of text: what makes or fetches its vocabulary; it is kept beside the arrays."""


def statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) by channel of uint8 images, exactly: from the histogram of the 256 values; else by float; of ids none."""
    if x.dtype == torch.int64:
        return (), ()
    if x.dtype != torch.uint8:
        spread = x.double().std(0, correction=0).clamp_min(LEAST_SPREAD)
        return tuple(round(one, 4) for one in x.double().mean(0).tolist()), tuple(round(one, 4) for one in spread.tolist())
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in x.unbind(1):
        share = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = (share * values).sum()
        means.append(round(mean.item(), 4))
        stds.append(max(round((share * (values - mean) ** 2).sum().sqrt().item(), 4), 1e-3))
    return tuple(means), tuple(stds)
