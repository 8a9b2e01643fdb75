"""What the clients of somebody's own app used, as its owner says, and how well it explains the captured updates."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fl_app.attacking import foreign
from fl_app.attacking.jobs import TaskSpec
from fl_app.core.local import LocalRule, Tensors, local_update
from fl_app.core.observation import Key, Observation
from fl_app.core.space import Images
from fl_app.core.text import Tokens
from fl_app.store.captures import Captures
from fl_app.store.files import RunError, load_tensors

UNEXPLAINED = 0.1
"""From this relative error on, the update is not that of the truth under the stated rule, and a failed attack says nothing."""
MOST_MATCHED = 64
"""Clients of a round among which truths are moved: the work grows with the square."""
FAR = 1e6
Channels = tuple[float, ...]
USUAL: dict[int, list[tuple[Channels, Channels]]] = {
    1: [((0.5,), (0.5,)), ((0.1307,), (0.3081,)), ((0.286,), (0.353,))],
    3: [
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201)),
        ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
        ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    ],
}
"""Channels -> means and standard deviations that apps normalise with: halves, MNIST, Fashion-MNIST, ImageNet, CIFAR."""
Truth = dict[Key, tuple[Tensor, Tensor]]
"""Target -> x (n, *shape) in [0, 1], y int64 (n,)."""


class Pair(NamedTuple):
    """A captured update and what the client is said to have used; the name is the one in the captures and in the truth."""

    name: str
    seen: Observation
    x: Tensor
    y: Tensor

    @property
    def key(self) -> Key:
        """The target."""
        return self.seen.server_round, self.seen.client


def read_pairs(path: Path, captures: Captures, task: TaskSpec) -> list[Pair]:
    """The captures that a file names with what their clients used; RunError if it cannot be that, or names none."""
    if not captures.paths():
        raise RunError(f"{captures.folder} has no captures: wrap the app's strategy in Curious and run it")
    stored, found = load_tensors(path)[0], []
    for seen in captures.read_all()[0]:  # what cannot be read is no target
        name = captures.path_of(seen.server_round, seen.client).relative_to(captures.folder).with_suffix("").as_posix()
        if (x := stored.get(f"{name}/x")) is None or (y := stored.get(f"{name}/y")) is None:
            continue
        shape = (seen.num_examples, *task.input_shape)
        space = task.space or Images(task.input_shape)
        if x.ndim != len(shape) or not len(x) or not space.holds(x):
            what = "ids of tokens, int64," if isinstance(space, Tokens) else "floats in [0, 1]"
            raise RunError(f"{path}: {name}/x must be {what} of the shape {shape}, not {tuple(x.shape)} {x.dtype}")
        if y.shape != x.shape[:1] or y.dtype != torch.int64 or not bool(((y >= 0) & (y < task.num_classes)).all()):
            raise RunError(f"{path}: {name}/y must be {len(x)} classes below {task.num_classes} as int64")
        found.append(Pair(name, seen, x.float() if x.is_floating_point() else x, y))
    if not found:
        raise RunError(f"{path} names nothing that was captured: it needs tensors round-0001/client-00/x and /y, and so on")
    return found


def check_numbers(path: Path, pairs: Sequence[Pair]) -> None:
    """Refuse a truth with another number of examples than its client used."""
    for pair in pairs:
        if len(pair.y) != pair.seen.num_examples:
            shape = (pair.seen.num_examples, *pair.x.shape[1:])
            raise RunError(f"{path}: {pair.name}/x must be of the shape {shape}, not {tuple(pair.x.shape)}")


def unexplained(model: nn.Module, seen: Observation, x: Tensor, y: Tensor, rule: LocalRule | None = None) -> float:
    """The relative error of the update that follows from (x, y) and the rule; NaN or infinite if there is none."""
    fitted = foreign.fitted(seen, model)
    return relative_error(local_update(model, fitted.params, x, y, rule or seen.rule), fitted.update)


def relative_error(ours: Tensors, theirs: Tensors) -> float:
    """|ours - theirs| / |theirs| over all parameters."""
    a, b = (torch.cat([each[name].flatten().double() for name in theirs]) for each in (ours, theirs))
    return float((a - b).norm() / b.norm())


def errors_of(model: nn.Module, pairs: Sequence[Pair]) -> list[float]:
    """How badly each pair's update is explained: infinite if not by as many examples."""
    return [_error(model, pair.seen, pair) for pair in pairs]


def _error(model: nn.Module, seen: Observation, used: Pair) -> float:
    if seen.num_examples != len(used.y):
        return math.inf
    error = unexplained(model, seen, used.x, used.y)
    return error if math.isfinite(error) else math.inf


def rematched(model: nn.Module, pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs, with the truths of a round given to other clients of it where these explain all its updates, and theirs not.

    Apps number their clients by partitions, servers by nodes, so that names need not agree (Kuhn 1955 for the assignment).
    """
    found: list[Pair] = []
    for _, group in itertools.groupby(pairs, lambda pair: pair.seen.server_round):
        named = list(group)
        if all(error <= UNEXPLAINED for error in errors_of(model, named)) or len(named) > MOST_MATCHED:
            found += named
            continue
        table = np.array([[min(_error(model, one.seen, used), FAR) for used in named] for one in named])
        rows, columns = linear_sum_assignment(table)
        if (table[rows, columns] > UNEXPLAINED).any():
            found += named
        else:
            # The name stays that of the truth, which says whose it is.
            found += [named[column]._replace(seen=named[row].seen) for row, column in zip(rows, columns, strict=True)]
    return found


def explained(path: Path, captures: Captures, task: TaskSpec) -> tuple[list[Pair], list[float], list[str]]:
    """(pairs, the error of each, what is to be said): with truths given to other clients where only that explains them.

    If nothing does, and no normalisation was named, the usual ones are tried.
    """
    named = read_pairs(path, captures, task)
    model = task.build().model
    pairs = rematched(model, named)
    check_numbers(path, pairs)
    errors = errors_of(model, pairs)
    notes = [
        f"{pair.name} in {path.name} is what client {pair.seen.client} used, by its update" for pair in pairs if moved(pair)
    ]
    if task.normalize is None and task.space is None and not all(error <= UNEXPLAINED for error in errors):
        for mean, std in USUAL.get(task.input_shape[0], ()):
            other = replace(task, normalize=(mean, std)).build().model
            if all(error <= UNEXPLAINED for error in errors_of(other, rematched(other, named))):
                words = " ".join(f"--{name} {','.join(map(str, values))}" for name, values in (("mean", mean), ("std", std)))
                notes.append(f"the app normalises its inputs, and {path.name} explains its updates with that: add {words}")
                break
    return pairs, errors, notes


def moved(pair: Pair) -> bool:
    """Whether the truth names another client than the one whose update it explains."""
    return not pair.name.endswith(f"client-{pair.seen.client:02d}") and pair.seen.client >= 0
