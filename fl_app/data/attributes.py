"""What is known of images beside their classes: a CSV file in their folder, a line for each."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fl_app.core.table import Column
from fl_app.data.base import DataError
from fl_app.data.tables import MISSING, MOST_CATEGORIES, categories, read_csv

FILE = "attributes.csv"
KEY = "file"
"""The column that names an image by its path within the folder."""


class Beside(NamedTuple):
    """Columns of categories, and of each image, by its path, the place of its value in every column."""

    columns: tuple[Column, ...]
    places: dict[str, tuple[int, ...]]

    def of(self, images: Sequence[Path], folder: Path) -> Tensor:
        """The places of some images, int64 (n, columns); DataError names one that has no line."""
        names = [path.relative_to(folder).as_posix() for path in images]
        if missing := next((name for name in names if name not in self.places), None):
            raise DataError(f"{folder / FILE} has no line about '{missing}': each image needs one")
        return torch.tensor([self.places[name] for name in names])


def read_beside(folder: Path) -> Beside | None:
    """The attributes in a folder of images; None if it has no such file."""
    path = folder / FILE
    if not path.exists():
        return None
    columns = dict(read_csv(path).columns)
    files = columns.pop(KEY, None)
    if files is None:
        raise DataError(f"{path} needs a column '{KEY}' with the path of each image within the folder")
    if len(set(files)) < len(files):
        twice = next(name for i, name in enumerate(files) if name in files[:i])
        raise DataError(f"{path} has two lines about '{twice}'")
    for name, cells in columns.items():
        if empty := [file for file, cell in zip(files, cells, strict=True) if cell.strip().lower() in MISSING]:
            raise DataError(f"{path}: '{empty[0]}' has no value in the column '{name}': write one, 'unknown' for example")
    try:
        found = {
            name: categories("the column", name, [cell.strip() for cell in cells], MOST_CATEGORIES, "leave the column out")
            for name, cells in columns.items()
        }
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    places = zip(*(each.tolist() for each, _ in found.values()), strict=True)
    kept = tuple(Column(name, values=values) for name, (_, values) in found.items())
    return Beside(kept, dict(zip(files, places, strict=True)))
