"""Images with attributes that are on every machine: a coarser task, beside which the finer classes stay to be inferred.

Which digits have a loop, what flies, the tasks, and the classes of the faces are ours; all images and finer classes are
published ones.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from fl_app.core.table import Column
from fl_app.data.base import Arrays, Recipe
from fl_app.data.splits import hold_out

Kind = Literal["digits", "objects", "faces"]
SPLITS = ("train", "test")
NO_YES = ("no", "yes")
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""The classes of CIFAR-10 in their order."""
FACES = 100
"""The first images of scikit-image's subset of LFW are faces, the other 100 are pieces of the same photos without one."""


class Derived(NamedTuple):
    """How a data set with attributes is made: its columns, and its arrays."""

    attributes: tuple[Column, ...]
    read: Callable[[], Arrays]


def _coarser(dataset: str, task: Sequence[int], attributes: Sequence[Sequence[int]]) -> Arrays:
    """A published data set with another task and attributes, each by a table over its classes (classes,)."""
    from fl_app import data  # which lists this file among its own

    found, arrays = data.load(dataset), Arrays()
    for split, part in zip(SPLITS, (found.train, found.test), strict=True):
        arrays[f"{split}_x"], arrays[f"{split}_y"] = part.x, torch.tensor(task)[part.y]
        arrays[f"{split}_a"] = torch.tensor(attributes).T[part.y].contiguous()
    return arrays


def _among(some: Sequence[int]) -> list[int]:
    return [int(label in some) for label in range(10)]


def _digits() -> Arrays:
    """MNIST: is it below five? Which digit, is it odd, does it have a closed loop?"""
    return _coarser("mnist", _among(range(5, 10)), [list(range(10)), _among((1, 3, 5, 7, 9)), _among((0, 6, 8, 9))])


def _objects() -> Arrays:
    """CIFAR-10: animal or vehicle? Which object, and does it fly?"""
    return _coarser("cifar10", _among((0, 1, 8, 9)), [list(range(10)), _among((0, 2))])


def _faces() -> Arrays:
    """Pieces of photos: is it brighter than half of its kind? Is it a face? Half of them are held out."""
    from skimage import data as photos

    x = torch.from_numpy(photos.lfw_subset())[:, None].mul(255).round().to(torch.uint8)  # type: ignore[no-untyped-call]
    bright = x.float().mean((1, 2, 3))
    face = (torch.arange(len(x)) < FACES).long()
    middle = torch.stack([bright[face == kind].median() for kind in (0, 1)])
    y, arrays = (bright > middle[face]).long(), Arrays()
    for split, chosen in zip(SPLITS, hold_out(range(len(x)), 0.5), strict=True):
        arrays |= {f"{split}_x": x[chosen], f"{split}_y": y[chosen], f"{split}_a": face[chosen][:, None]}
    return arrays


DERIVED: dict[Kind, Derived] = {
    "digits": Derived(
        (Column("digit", tuple(map(str, range(10)))), Column("odd", NO_YES), Column("loop", NO_YES)),
        _digits,
    ),
    "objects": Derived((Column("object", OBJECTS), Column("flies", NO_YES)), _objects),
    "faces": Derived((Column("face", NO_YES),), _faces),
}


def attributed(*, kind: Kind = "digits") -> Recipe:
    """Images with attributes: digits (MNIST), objects (CIFAR-10), faces (200 pieces of photos inside scikit-image)."""
    made = DERIVED[kind]

    def read(_: Path) -> Arrays:
        return made.read()

    return Recipe(key=f"attributed-{kind}", read=read, num_classes=2, attributes=made.attributes)
