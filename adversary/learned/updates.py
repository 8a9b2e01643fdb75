"""What a server would see of public examples at the weights of a round, through the defense where it was granted."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import grad, vmap

from adversary.base import Public
from fl_app.core.local import Gradient, Step, Tensors, local_update, loss_of
from fl_app.core.observation import Observation, Task

CHUNK = 2**24
"""Numbers that the gradients of batches may have at once: 64 MB of float32."""


def one_by_one(task: Task, seen: Observation, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
    """The updates of batches x (n, batch, *shape), y (n, batch), one after the other: (n, *parameter shape)."""
    protect = _protection(seen, rng)
    found = []
    for own_x, own_y in zip(x, y, strict=True):
        update = local_update(task.model, seen.params, own_x, own_y, seen.rule, protect)
        found.append({name: value.detach() for name, value in update.items()})
    return stacked(found)


def at_once(task: Task, seen: Observation, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
    """The same as far as the defense allows with gradients of many batches together; its draws are made batch by batch."""
    if seen.rule.kind != "gradient":
        return one_by_one(task, seen, x, y, rng)
    transform = None
    if seen.knowledge.defense is not None:
        from adversary.informed.expected import transformation  # only informed attackers know defenses

        transform = transformation(seen, rng)
        if transform is None:
            return one_by_one(task, seen, x, y, rng)

    def gradient(params: Tensors, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(task.model, params, x, y)

    size = max(1, CHUNK // (x.shape[1] * sum(value.numel() for value in seen.params.values())))
    found = []
    for own_x, own_y in zip(x.split(size), y.split(size), strict=True):
        parts = vmap(grad(gradient), in_dims=(None, 0, 0), randomness="different")(seen.params, own_x, own_y)
        parts = {name: parts[name].detach() for name in seen.update}
        if transform is not None:
            rows = ({name: value[i] for name, value in parts.items()} for i in range(len(own_x)))
            parts = stacked([transform(row) for row in rows])
        found.append(parts)
    return {name: torch.cat([part[name] for part in found]) for name in found[0]}


def groups(public: Public, number: int, size: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """(x (number, size, *shape), y (number, size)) of public examples; of several at random, none twice in a group."""
    if size == 1:
        chosen = torch.arange(number) % len(public.x)
        return public.x[chosen][:, None], public.y[chosen][:, None]
    rows = torch.rand(number, len(public.x), generator=rng) if number * len(public.x) <= CHUNK else None
    if rows is None:
        picked = torch.stack([torch.randperm(len(public.x), generator=rng)[:size] for _ in range(number)])
    else:
        picked = rows.topk(size, 1).indices
    picked = picked.to(public.y.device)
    return public.x[picked], public.y[picked]


def stacked(updates: Sequence[Tensors]) -> Tensors:
    """Updates as one: (n, *parameter shape)."""
    return {name: torch.stack([one[name] for one in updates]) for name in updates[0]}


def _protection(seen: Observation, rng: torch.Generator) -> Gradient:
    if seen.knowledge.defense is None:
        return Step.gradient
    from adversary.informed.expected import protection  # only informed attackers know defenses

    return protection(seen, rng)
