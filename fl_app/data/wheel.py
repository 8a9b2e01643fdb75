"""Public tables that are on every machine: they come inside scikit-learn's wheel."""

import csv as csv_format
import gzip
from functools import lru_cache
from pathlib import Path
from typing import Literal

from fl_app.core.errors import said
from fl_app.data.base import DataError, Recipe
from fl_app.data.splits import Share
from fl_app.data.tables import Encoded, Table, encode, recipe

TITANIC = Path("tests", "data", "openml", "id_40945", "data-v1-dl-16826755.arff.gz")
"""OpenML's file of 1,309 passengers, below sklearn.datasets: whole, though it is there for tests."""
DROPPED = ("name", "ticket", "cabin", "boat", "body", "home.dest")
"""Names of people and places, and what was known only afterwards."""
Kind = Literal["titanic", "breast_cancer", "wine"]


def read_arff(path: Path) -> Table:
    """A dense ARFF file, packed with gzip."""
    header, lines, inside = [], [], False
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in map(str.strip, file):
            if inside and line:
                lines.append(line)
            elif line.lower().startswith("@attribute"):
                header.append(line.split(None, 2)[1].strip("'\""))
            inside = inside or line.lower() == "@data"
    return Table.of(header, list(csv_format.reader(lines)))


@lru_cache(maxsize=4)
def _encoded(kind: Kind) -> Encoded:
    from sklearn import datasets

    if kind == "titanic":
        path = Path(datasets.__file__).parent / TITANIC
        try:
            table = read_arff(path)
        except OSError as error:
            raise DataError(f"this scikit-learn comes without {path.name} ({said(error)}): take another kind") from error
        return encode(table, "survived", ("pclass",), DROPPED)
    found = getattr(datasets, f"load_{kind}")()
    columns = {
        str(name): list(map(repr, column.tolist())) for name, column in zip(found.feature_names, found.data.T, strict=True)
    }
    classes = [str(found.target_names[label]) for label in found.target]
    return encode(Table({**columns, "class": classes}), "class")


def table(*, kind: Kind = "titanic", test_share: Share = 0.2) -> Recipe:
    """Tables inside scikit-learn: titanic (3 categories, 4 numbers), breast_cancer (30 numbers), wine (13 numbers)."""
    return recipe(f"table-{kind}", _encoded(kind), test_share)
