"""What the clients of somebody's own app used, as its owner says, and how well it explains the captured updates."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fl_app.attacking import foreign
from fl_app.attacking.jobs import TaskSpec
from fl_app.core.local import LocalRule, Tensors, local_update
from fl_app.core.observation import Key, Observation
from fl_app.store.captures import Captures
from fl_app.store.files import RunError, load_tensors

UNEXPLAINED = 0.1
"""From this relative error on, the update is not that of the truth under the stated rule, and a failed attack says nothing."""
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
    stored, found = load_tensors(path)[0], []
    for seen in captures.read_all()[0]:  # what cannot be read is no target
        name = captures.path_of(seen.server_round, seen.client).relative_to(captures.folder).with_suffix("").as_posix()
        if (x := stored.get(f"{name}/x")) is None or (y := stored.get(f"{name}/y")) is None:
            continue
        shape = (seen.num_examples, *task.input_shape)
        if x.shape != shape or not x.is_floating_point() or not bool(((x >= 0) & (x <= 1)).all()):
            raise RunError(f"{path}: {name}/x must be floats in [0, 1] of the shape {shape}, not {tuple(x.shape)} {x.dtype}")
        if y.shape != shape[:1] or y.dtype != torch.int64 or not bool(((y >= 0) & (y < task.num_classes)).all()):
            raise RunError(f"{path}: {name}/y must be {shape[0]} classes below {task.num_classes} as int64")
        found.append(Pair(name, seen, x.float(), y))
    if not found:
        raise RunError(f"{path} names nothing that was captured: it needs tensors round-0001/client-00/x and /y, and so on")
    return found


def unexplained(model: nn.Module, seen: Observation, x: Tensor, y: Tensor, rule: LocalRule | None = None) -> float:
    """The relative error of the update that follows from (x, y) and the rule; NaN or infinite if there is none."""
    fitted = foreign.fitted(seen, model)
    return relative_error(local_update(model, fitted.params, x, y, rule or seen.rule), fitted.update)


def relative_error(ours: Tensors, theirs: Tensors) -> float:
    """|ours - theirs| / |theirs| over all parameters."""
    a, b = (torch.cat([each[name].flatten().double() for name in theirs]) for each in (ours, theirs))
    return float((a - b).norm() / b.norm())


def errors_of(model: nn.Module, pairs: Sequence[Pair]) -> list[float]:
    """How badly each pair's update is explained."""
    return [unexplained(model, pair.seen, pair.x, pair.y) for pair in pairs]
