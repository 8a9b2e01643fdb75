"""Clean updates of public examples as rows of numbers, and back."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from adversary.base import LEAST_PUBLIC, AttackError, Public
from adversary.learned.updates import at_once, groups
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task

TINY = 1e-12
AT_ONCE = 250
"""Updates that are taken at once."""


def clean_rows(task: Task, seen: Observation, public: Public, number: int, clip: float, rng: torch.Generator) -> Tensor:
    """The updates of groups of public examples without a defense, (number, entries), clipped where the client clips."""
    if len(public.x) < LEAST_PUBLIC:
        raise AttackError(f"a denoiser learns from at least {LEAST_PUBLIC} public examples, and there are {len(public.x)}")
    untold = replace(seen, knowledge=replace(seen.knowledge, defense=None))
    x, y = groups(public, number, seen.num_examples, rng)
    parts = zip(x.split(AT_ONCE), y.split(AT_ONCE), strict=True)
    found = torch.cat([rows_of(at_once(task, untold, own_x, own_y, rng)) for own_x, own_y in parts])
    if clip:
        found = found * (clip / found.norm(dim=1, keepdim=True).clamp_min(clip))
    return found


def rows_of(updates: Tensors) -> Tensor:
    """Updates (n, *parameter shape) -> (n, entries)."""
    return torch.cat([value.flatten(1) for value in updates.values()], 1)


def rows_seen(seen: Sequence[Observation]) -> Tensor:
    """The updates of observations, (n, entries)."""
    return torch.stack([torch.cat([value.flatten() for value in one.update.values()]) for one in seen])


def as_updates(rows: Tensor, like: Tensors) -> list[Tensors]:
    """Rows (n, entries) as updates of the shapes and types of another one."""
    sizes = [value.numel() for value in like.values()]
    return [
        {name: part.view(value.shape).to(value) for (name, value), part in zip(like.items(), row.split(sizes), strict=True)}
        for row in rows
    ]
