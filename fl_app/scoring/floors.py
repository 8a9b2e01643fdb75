"""What somebody who never saw an update would answer: a reconstruction must beat these to mean anything.

Each floor knows the classes of the target and the rest of the training data, as if that were public.
"""

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from fl_app.core.space import Space
from fl_app.core.table import TOLERANCE, Rows
from fl_app.core.text import lengths
from fl_app.data.base import Examples
from fl_app.scoring.text import Text

Floor = Callable[[Examples, Tensor, torch.Generator, Tensor], Tensor]
"""(training split, true classes (n,), generator, positions of the target in the split) -> x (n, *shape) in [0, 1].

The space then makes valid examples of them: of a mean row the most frequent categories.
"""


@lru_cache(maxsize=2)
def _sums(train: Examples) -> tuple[Tensor, Tensor]:
    """By class, the sum of its examples (classes, *shape) and their number (classes,); of images int64 and so exact."""
    classes, wide = int(train.y.max()) + 1, _wide(train)
    sums = torch.stack([train.x[train.y == label].sum(0, dtype=wide) for label in range(classes)])
    return sums, torch.bincount(train.y, minlength=classes)


def _wide(train: Examples) -> torch.dtype:
    return torch.int64 if train.x.dtype == torch.uint8 else torch.float64


def class_mean(train: Examples, y: Tensor, rng: torch.Generator, excluded: Tensor) -> Tensor:
    """The mean image of each class without the excluded; of all classes where a class has nobody else."""
    y, excluded = y.cpu(), excluded.unique()
    sums, counts = (part.clone() for part in _sums(train))
    sums.index_add_(0, train.y[excluded], train.x[excluded].to(_wide(train)), alpha=-1)
    counts -= torch.bincount(train.y[excluded], minlength=len(counts))
    lonely = counts == 0
    if int(counts.sum()) == 0:
        raise ValueError("no example is left to make a blind floor of")
    sums[lonely], counts[lonely] = sums.sum(0), counts.sum()
    means = sums[y].double() / counts[y].view(-1, *[1] * (sums.ndim - 1))
    return (means / 255 if train.x.dtype == torch.uint8 else means).float()


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


def class_mode(rows: Rows, train: Examples, y: Tensor, rng: torch.Generator, excluded: Tensor) -> Tensor:
    """Of each class the row of its most frequent cells without the excluded, of numbers that with most within the tolerance."""
    allowed = torch.ones(len(train), dtype=torch.bool)
    allowed[excluded] = False
    modes = {}
    for label in y.unique().tolist():
        own = allowed & (train.y == label)
        own = own if bool(own.any()) else allowed
        modes[label] = torch.stack([_mode(column) for column in rows.cells(train.x[own]).unbind(1)])
    return rows.encode(torch.stack([modes[label] for label in y.tolist()]))


def _mode(cells: Tensor) -> Tensor:
    """The cell with the most others no further than the tolerance; places of categories are further apart than that."""
    ordered = cells.sort().values
    reach = torch.searchsorted(ordered, ordered + TOLERANCE, right=True) - torch.searchsorted(ordered, ordered - TOLERANCE)
    return ordered[reach.argmax()]


def common_words(text: Text, train: Examples, y: Tensor, rng: torch.Generator, excluded: Tensor) -> Tensor:
    """The most frequent tokens of public text, as many as the truth has."""
    return _sentences(text, text.by_frequency.expand(len(y), -1)[:, : train.x.shape[1]], train.x[excluded])


def random_words(text: Text, train: Examples, y: Tensor, rng: torch.Generator, excluded: Tensor) -> Tensor:
    """Uniform tokens, as many as the truth has."""
    return _sentences(text, text.tokens.noise(len(y), rng)[:, 1:], train.x[excluded])


def _sentences(text: Text, words: Tensor, true_x: Tensor) -> Tensor:
    """Rows of tokens (n, at least length - 2) between [CLS] and [SEP], as long as the true ones."""
    found, ends = torch.zeros_like(true_x), lengths(true_x) - 1
    found[:, 1:-1] = words[:, : true_x.shape[1] - 2]
    places = torch.arange(true_x.shape[1])
    found[places > ends[:, None]] = 0
    found[places == ends[:, None]] = text.tokens.vocabulary.sep
    found[:, 0] = text.tokens.vocabulary.cls
    return found


def floors_for(space: Space, text: Text | None = None) -> dict[str, Floor]:
    """The floors of examples: the mean of a class is an image, and no good answer about cells or words."""
    if text is not None:
        words: dict[str, Floor] = {
            "common words": partial(common_words, text),
            "random words": partial(random_words, text),
        }
        return {"same class": same_class, **words}
    if not isinstance(space, Rows):
        return FLOORS
    return {"class mode": partial(class_mode, space)} | {name: floor for name, floor in FLOORS.items() if name != "class mean"}


FLOORS: dict[str, Floor] = {"class mean": class_mean, "same class": same_class, "noise": noise}
