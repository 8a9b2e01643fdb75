"""What somebody who never saw an update would answer: a reconstruction must beat these to mean anything.

Each floor knows the classes of the target and the rest of the training data, as if that were public.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from fl_app.data.base import Examples

Floor = Callable[[Examples, Tensor, torch.Generator, Tensor], Tensor]
"""(training split, true classes (n,), generator, positions of the target in the split) -> x (n, *shape) in [0, 1]."""


@lru_cache(maxsize=2)
def _sums(train: Examples) -> tuple[Tensor, Tensor]:
    """By class, the sum of its images (classes, *shape) and their number (classes,), both int64 and so exact."""
    classes = int(train.y.max()) + 1
    sums = torch.stack([train.x[train.y == label].sum(0, dtype=torch.int64) for label in range(classes)])
    return sums, torch.bincount(train.y, minlength=classes)


def class_mean(train: Examples, y: Tensor, rng: torch.Generator, excluded: Tensor) -> Tensor:
    """The mean image of each class without the excluded; of all classes where a class has nobody else."""
    y, excluded = y.cpu(), excluded.unique()
    sums, counts = (part.clone() for part in _sums(train))
    sums.index_add_(0, train.y[excluded], train.x[excluded].long(), alpha=-1)
    counts -= torch.bincount(train.y[excluded], minlength=len(counts))
    lonely = counts == 0
    if int(counts.sum()) == 0:
        raise ValueError("no example is left to make a blind floor of")
    sums[lonely], counts[lonely] = sums.sum(0), counts.sum()
    means = sums[y].double() / counts[y].view(-1, *[1] * (sums.ndim - 1)) / 255
    return means.float()


def same_class(train: Examples, y: Tensor, rng: torch.Generator, excluded: Tensor) -> Tensor:
    """Another image of each class, drawn from those not excluded; of any class where a class has nobody else."""
    allowed = torch.ones(len(train), dtype=torch.bool)
    allowed[excluded] = False
    if not allowed.any():
        raise ValueError("no example is left to make a blind floor of")
    y = y.cpu()
    chosen = torch.empty(len(y), dtype=torch.int64)
    for label in y.unique().tolist():  # in order of the class, so that the draws do not depend on the order of y
        others = (allowed & (train.y == label)).nonzero()[:, 0]
        others = others if len(others) else allowed.nonzero()[:, 0]
        wanted = y == label
        chosen[wanted] = others[torch.randint(len(others), (int(wanted.sum()),), generator=rng)]
    return train.at(chosen)[0]


def noise(train: Examples, y: Tensor, rng: torch.Generator, excluded: Tensor) -> Tensor:
    """Uniform noise."""
    return torch.rand(len(y), *train.x.shape[1:], generator=rng)


FLOORS: dict[str, Floor] = {"class mean": class_mean, "same class": same_class, "noise": noise}
