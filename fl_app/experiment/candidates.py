"""Examples that nobody's membership follows from: public ones, held-out ones, and those that an auditor names in a file."""

from pathlib import Path

import torch
from torch import Tensor

from fl_app.core.observation import Candidates
from fl_app.core.space import Space
from fl_app.data import load
from fl_app.data.splits import PUBLIC
from fl_app.experiment.assets import Assets
from fl_app.store.files import RunError, load_tensors

PUBLIC_TEXT = 20_000
"""The most rows of public text."""


def public_examples(assets: Assets, wanted: int = 0) -> tuple[Tensor, Tensor, Tensor | None]:
    """(x, y, attributes) of examples of the test split, which no client holds and no target is made of; or of public text.

    An attack may want more than the usual number of images, up to the whole split. What is held out from an attack that asks
    about members are test examples behind the usual ones, so that such an attack must not want more.
    """
    text = load(assets.experiment.dataset).public
    if text is not None:
        return *text.at(torch.linspace(0, len(text) - 1, min(PUBLIC_TEXT, len(text))).long()), None
    public = assets.splits.test.part(slice(0, max(PUBLIC, wanted)))
    return *public.at(slice(None)), public.a


def held_out(assets: Assets, y: Tensor, number: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Examples in no client's data, with classes as frequent as in y: the class alone tells no member from them.

    They are training examples that nobody owns; where these are too few, those of the test split that are not public.
    """
    train, test = assets.splits.train, assets.splits.test
    free = torch.ones(len(train), dtype=torch.bool)
    free[torch.cat(assets.shares)] = False
    told = min(PUBLIC, len(test)) if load(assets.experiment.dataset).public is None else 0
    wanted = torch.bincount(y.cpu(), minlength=assets.num_classes).double()
    pools = [(train, free.nonzero()[:, 0]), (test, torch.arange(told, len(test)))]
    weights = [_weights(wanted, split.y[positions]) for split, positions in pools]
    possible = [int((each > 0).sum()) for each in weights]
    place = 0 if possible[0] >= min(number, possible[1]) else 1
    if not possible[place]:
        raise RunError("no example is held out from the clients: -c client-examples=N leaves some that nobody owns")
    split, positions = pools[place]
    return split.at(positions[torch.multinomial(weights[place], min(number, possible[place]), generator=rng)])


def _weights(wanted: Tensor, classes: Tensor) -> Tensor:
    """How likely each example of some classes is to be drawn, if their classes are to be as frequent as wanted."""
    return (wanted / torch.bincount(classes, minlength=len(wanted)).clamp_min(1))[classes]


def read_candidates(path: Path, space: Space, classes: int) -> Candidates:
    """The candidates in a file of tensors x (n, *shape) and y int64 (n,); RunError if they cannot be that."""
    tensors, _ = load_tensors(path)
    if tensors.keys() != {"x", "y"}:
        raise RunError(f"{path} must hold candidates as two tensors, x and y, and nothing else: not who is a member")
    x, y = tensors["x"], tensors["y"]
    if x.ndim != 1 + len(space.shape) or not len(x) or not space.holds(x):
        raise RunError(f"{path}: x must be examples of the shape {space.shape}, not {tuple(x.shape)} {x.dtype}")
    if y.shape != x.shape[:1] or y.dtype != torch.int64 or not bool(((y >= 0) & (y < classes)).all()):
        raise RunError(f"{path}: y must be {len(x)} classes below {classes} as int64")
    return Candidates(x.float() if x.is_floating_point() else x, y)
