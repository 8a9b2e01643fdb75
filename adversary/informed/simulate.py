"""What a defense makes of examples that an attacker tries: the client's own code, with draws of the attacker's."""

import torch
from torch import Tensor

import client_defenses
from adversary.inference.base import flat
from client_defenses import Memory
from fl_app.core.local import Step
from fl_app.core.observation import Observation, Task


def through(spec: str, task: Task, seen: Observation, x: Tensor, y: Tensor, rng: torch.Generator, draws: int) -> Tensor:
    """The mean of what a client sends of each batch x (n, batch, *shape), y (n, batch), over draws: (n, size)."""
    defense = client_defenses.build(spec).within(task.space)
    found = []
    for own_x, own_y in zip(x, y, strict=True):
        step, parts = Step(seen.params, task.model, own_x, own_y), []
        for _ in range(draws):
            memory = Memory.fresh(int(torch.randint(2**62, (), generator=rng)))
            sent = defense.protect(step, memory)
            parts.append(flat({name: sent[name].detach() for name in seen.update}))
        found.append(torch.stack(parts).mean(0))
    return torch.stack(found)
