"""How far sentences explain an update, under the classes that explain it best: the evidence of exact attacks."""

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from adversary.labels import LabelRule, infer
from adversary.objectives import TINY
from fl_app.core.local import Tensors, local_update
from fl_app.core.observation import Observation, Task

MOST = 64
"""Assignments of classes that are tried (ours)."""


class Explained(NamedTuple):
    """Classes int64 (examples,), and the relative distance of their update from what was seen: 0 proves sentences right."""

    y: Tensor
    distance: Tensor


def explained(x: Tensor, seen: Observation, task: Task, labels: LabelRule, stream: torch.Generator) -> Explained:
    """The classes under which the sentences x (examples, length) explain an update best, all of them tried if they are few.

    A language model has no classes: its answer is the sentences themselves.
    """
    device = next(iter(seen.params.values())).device
    x = x.to(device)
    best: Explained | None = None
    for y in _assignments(seen, task, labels, stream):
        own = local_update(task.model, seen.params, x, y.to(device), seen.rule)
        one = Explained(y, _distance(own, seen.update))
        if best is None or one.distance < best.distance:
            best = one
    assert best is not None
    return best


def _assignments(seen: Observation, task: Task, labels: LabelRule, stream: torch.Generator) -> list[Tensor]:
    number = seen.num_examples
    if labels != "given" and task.num_classes**number <= MOST:
        return [torch.tensor(one) for one in product(range(task.num_classes), repeat=number)]
    y = infer("count" if labels == "joint" else labels, seen, task, stream).cpu()
    orders = [y, *(y[torch.randperm(number, generator=stream)] for _ in range(MOST - 1))]
    return list({tuple(one.tolist()): one for one in orders}.values())


def _distance(own: Tensors, seen: Tensors) -> Tensor:
    """|own - seen| / |seen| over all entries."""
    apart = torch.stack([(own[name] - value).square().sum() for name, value in seen.items()]).sum()
    return (apart / torch.stack([value.square().sum() for value in seen.values()]).sum().clamp_min(TINY)).sqrt()
