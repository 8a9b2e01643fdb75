"""Tables: a CSV file of somebody's own, its columns numbers or categories, encoded as floats by a public schema."""

import csv as csv_format
import hashlib
import io
import logging
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fl_app.core.errors import said
from fl_app.core.spec import suggest
from fl_app.core.table import Column, Rows, number_column
from fl_app.data.base import Arrays, DataError, Recipe
from fl_app.data.splits import Share, hold_out

log = logging.getLogger("thorns")
MISSING = {"", "?", "na", "n/a", "nan", "null", "none"}
MOST_CATEGORIES = 100
"""A column of text with more values than that is a name or a number of somebody, and nothing to learn from (ours)."""
MOST_CLASSES = 1000
Bounds = tuple[tuple[str, float, float], ...]
Names = tuple[Annotated[str, Field(min_length=1)], ...]


class Table(NamedTuple):
    """Named columns of text, all of one length."""

    columns: dict[str, list[str]]

    @classmethod
    def of(cls, header: Sequence[str], lines: Sequence[Sequence[str]]) -> "Table":
        """The table of a header and lines as long as it."""
        parts = zip(*lines, strict=True) if lines else ((),) * len(header)
        return cls({name: list(part) for name, part in zip(header, parts, strict=True)})


class Encoded(NamedTuple):
    """Rows x: float32 (n, floats), classes y: int64 (n,), and what they stand for."""

    x: Tensor
    y: Tensor
    columns: tuple[Column, ...]
    classes: tuple[str, ...]


def encode(table: Table, label: str, categorical: Names = (), drop: Names = (), bounds: Bounds = ()) -> Encoded:
    """A table as rows: columns of numbers are scaled by their bounds, all others are categories.

    Rows with a missing cell are left out. Bounds that are not said are the smallest and largest value of the file, which
    thereby counts as public.
    """
    said_bounds = {name: (low, high) for name, low, high in bounds}
    _known(table, (label, *categorical, *drop, *said_bounds))
    if label in {*categorical, *drop, *said_bounds}:
        raise DataError(f"'{label}' is the label, and so neither a column of its own nor one to drop")
    kept = {name: values for name, values in table.columns.items() if name not in drop}
    whole = [
        i for i, cells in enumerate(zip(*kept.values(), strict=True)) if not any(c.strip().lower() in MISSING for c in cells)
    ]
    if len(whole) < 2:
        raise DataError(f"{len(whole)} rows have no missing cell: leave columns with missing cells out with drop=[...]")
    if len(whole) < len(table.columns[label]):
        log.info(
            "%d of %d rows have a missing cell and are left out",
            len(table.columns[label]) - len(whole),
            len(table.columns[label]),
        )
    kept = {name: [values[i].strip() for i in whole] for name, values in kept.items()}
    y, classes = categories("the label", label, kept.pop(label), MOST_CLASSES, "name another label")
    columns, cells = [], []
    for name, values in kept.items():
        numbers = None if name in categorical else _numbers(values)
        if numbers is None and name in said_bounds:
            raise DataError(f"the column '{name}' has bounds, and holds what is no number")
        if numbers is None:
            places, own = categories("the column", name, values, MOST_CATEGORIES, f"leave it out with drop=['{name}']")
            columns.append(Column(name, values=own))
            cells.append(places.double())
            continue
        try:
            column = number_column(name, numbers, said_bounds.get(name))
        except ValueError as error:
            raise DataError(f"{error}: leave it out with drop=['{name}']") from None
        if min(numbers) < column.low or max(numbers) > column.high:
            raise DataError(f"the column '{name}' holds {min(numbers):g} to {max(numbers):g}, beyond its bounds")
        columns.append(column)
        cells.append((torch.tensor(numbers, dtype=torch.float64) - column.low) / (column.high - column.low))
    if not columns:
        raise DataError("a table needs a column beside its label")
    x = Rows(tuple(columns)).encode(torch.stack(cells, dim=1)).float().clamp(0, 1)
    return Encoded(x, y, tuple(columns), classes)


def _known(table: Table, names: Sequence[str]) -> None:
    for name in names:
        if name not in table.columns:
            raise DataError(f"there is no column '{name}'; {suggest(name, table.columns)}")


def _numbers(values: Sequence[str]) -> list[float] | None:
    """The values as finite numbers; None if one is something else."""
    try:
        found = [float(value) for value in values]
    except ValueError:
        return None
    return found if all(map(math.isfinite, found)) else None


def categories(what: str, name: str, values: Sequence[str], most: int, advice: str) -> tuple[Tensor, tuple[str, ...]]:
    """(the place of each value among all, int64 (n,); all of them in order: numbers by size, then text)."""
    numbers = _numbers(values)
    by_size = dict(zip(values, numbers, strict=True)) if numbers else {}
    own = sorted(set(values), key=lambda value: (by_size.get(value, 0.0), value))
    if not 2 <= len(own) <= most:
        raise DataError(f"{what} '{name}' has {len(own)} different values, not 2 to {most}: {advice}")
    place = {value: i for i, value in enumerate(own)}
    return torch.tensor([place[value] for value in values]), tuple(own)


def recipe(prefix: str, encoded: Encoded, test_share: float) -> Recipe:
    """The recipe of an encoded table, a share of it held out for testing."""
    content = hashlib.sha256(encoded.x.numpy().data)
    content.update(encoded.y.numpy().data)
    content.update(repr((encoded.columns, encoded.classes, test_share)).encode())
    about = hashlib.blake2b(repr((encoded.columns, encoded.classes)).encode(), digest_size=8).hexdigest()

    def read(_: Path) -> Arrays:
        parts = zip(("train", "test"), hold_out(list(range(len(encoded.y))), test_share), strict=True)
        return {f"{split}_{axis}": getattr(encoded, axis)[chosen] for split, chosen in parts for axis in "xy"}

    return Recipe(
        key=f"{prefix}-{content.hexdigest()[:16]}",
        read=read,
        num_classes=len(encoded.classes),
        paths=about,
        columns=encoded.columns,
    )


def read_csv(path: Path) -> Table:
    """A CSV file with a header, in UTF-8; DataError says in which line it is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({said(error)})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8 (byte {error.start})") from None
    reader = csv_format.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        if not all(header) or len(set(header)) < max(2, len(header)):
            raise DataError(f"{path}: the first line must name at least two columns, each once")
        lines = []
        for line in reader:
            if line and len(line) != len(header):
                raise DataError(f"{path}, line {reader.line_num}: {len(line)} cells under {len(header)} columns")
            lines += [line] if line else []
    except csv_format.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None
    return Table.of(header, lines)


@lru_cache(maxsize=4)
def _csv(path: Path, _changed: tuple[int, int], label: str, categorical: Names, drop: Names, bounds: Bounds) -> Encoded:
    try:
        return encode(read_csv(path), label, categorical, drop, bounds)
    except DataError as error:
        raise DataError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def csv(
    *, path: str, label: str, categorical: Names = (), drop: Names = (), bounds: Bounds = (), test_share: Share = 0.2
) -> Recipe:
    """A table of your own with a header (Adult comes that way): columns of text are categories, all others numbers.

    `categorical` names numbers that are categories, `drop` what is left out, bounds=[['age', 0, 100]] the range of a number.
    """
    place = Path(path).expanduser().resolve()
    try:
        stat = place.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({said(error)})") from error
    return recipe("csv", _csv(place, (stat.st_size, stat.st_mtime_ns), label, categorical, drop, bounds), test_share)
