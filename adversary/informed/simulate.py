"""What a defense makes of examples that an attacker tries: the client's own code, with draws of the attacker's."""

import torch
from torch import Tensor

import client_defenses
from adversary.inference.base import flat
from client_defenses import Memory
from fl_app.core.local import Step, Tensors
from fl_app.core.observation import Observation, Task


def through(
    spec: str, task: Task, seen: Observation, x: Tensor, y: Tensor, rng: torch.Generator, draws: int, *, noise: bool = True
) -> Tensor:
    """The mean of what a client sends of each batch x (n, batch, *shape), y (n, batch), over draws: (n, size).

    Without noise it is what noise of a known law is added to: draws of it would drown small differences between batches.
    """
    defense = client_defenses.build(spec).within(task.space)
    law = None if noise else defense.noise_law()
    found = []
    for own_x, own_y in zip(x, y, strict=True):
        step, parts = Step(seen.params, task.model, own_x, own_y), list[Tensor]()
        if law is not None:
            mean = _flat(defense.before_noise(step, Memory.fresh(0)), seen)
            found.append(mean / len(own_y) if law.summed else mean)
            continue
        for _ in range(draws):
            memory = Memory.fresh(int(torch.randint(2**62, (), generator=rng)))
            sent = defense.protect(step, memory)
            parts.append(_flat(sent, seen))
        found.append(torch.stack(parts).mean(0))
    return torch.stack(found)


def _flat(sent: Tensors, seen: Observation) -> Tensor:
    return flat({name: sent[name].detach() for name in seen.update})
