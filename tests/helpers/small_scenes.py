"""Small targets with seeded weights and smooth images: cheap enough to follow every function through an attack."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

import client_defenses
from adversary import Public
from client_defenses import Memory
from fl_app.core.local import LocalRule, Step, local_update
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images
from fl_app.models.vit import vit

SHAPE, CLASSES = (3, 6, 6), 4
PIXELS = 108


def gated() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, 40), nn.ReLU(), nn.Linear(40, CLASSES))


def smooth() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(16, 10), nn.Tanh(), nn.Linear(10, 4)
    )


def softmax() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, CLASSES))


def pooled() -> nn.Module:
    front = (nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*front, nn.Flatten(), nn.Linear(54, 30), nn.ReLU(), nn.Linear(30, CLASSES))


def normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, CLASSES))


def transformer() -> nn.Module:
    return vit(SHAPE, CLASSES, patch=3, dim=18, depth=1, heads=2)


def pictures(number: int, rng: torch.Generator) -> torch.Tensor:
    coarse = torch.rand(number, SHAPE[0], 3, 3, generator=rng)
    return nn.functional.interpolate(coarse, size=SHAPE[1:], mode="bilinear", align_corners=True)


def truth(targets: int, examples: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """x (targets, examples, *shape), y (targets, examples)."""
    x = pictures(targets * examples, torch.Generator().manual_seed(21)).to(dtype)
    return x.view(targets, examples, *SHAPE), (torch.arange(targets * examples) % CLASSES).view(targets, examples)


def scene(
    network: Callable[[], nn.Module],
    examples: int = 1,
    rule: LocalRule | None = None,
    targets: int = 2,
    rounds: int = 1,
    dtype: torch.dtype = torch.float32,
    **knowledge: object,
) -> tuple[list[Observation], Task]:
    """What is seen of clients on the same examples in all rounds, and the task."""
    rule, draw = rule or LocalRule(batch_size=examples), torch.Generator().manual_seed(21)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = network().to(dtype).eval()
    x, y = truth(targets, examples, dtype)
    seen = []
    for number in range(rounds):
        named = model.named_parameters()
        params = {name: value.detach() + 0.05 * number * torch.randn(value.shape, generator=draw) for name, value in named}
        for client in range(targets):
            update = {name: one.detach() for name, one in local_update(model, params, x[client], y[client], rule).items()}
            known = Knowledge(repeats=rounds > 1, **knowledge)
            seen.append(
                Observation(
                    params=params,
                    update=update,
                    rule=rule,
                    num_examples=examples,
                    server_round=1 + number,
                    client=client,
                    knowledge=known,
                )
            )
    return seen, Task(model, Images(SHAPE), CLASSES)


def protected(seen: list[Observation], task: Task, defense: str) -> list[Observation]:
    """The same clients with a defense, which remembers from round to round."""
    built, clients = client_defenses.build(defense), 1 + max(one.client for one in seen)
    x, y = truth(clients, seen[0].num_examples)
    memories = [Memory.fresh(100 + client) for client in range(clients)]
    sent = []
    for one in seen:
        memory, step = memories[one.client], Step(one.params, task.model, x[one.client], y[one.client])
        memory.next_round()
        built.on_start(step, memory)
        sent.append(replace(one, update=built.protect(step, memory)))
    return sent


def public(number: int = 500) -> Public:
    """Smooth and a little noisy: in no direction do they not vary, as rounding would decide there."""
    draw = torch.Generator().manual_seed(8)
    x = 0.7 * pictures(number, draw) + 0.3 * torch.rand(number, *SHAPE, generator=draw)
    return Public(x, torch.arange(number) % CLASSES)
