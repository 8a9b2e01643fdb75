"""What malicious servers see of clients with known images."""

from dataclasses import replace

import torch

from fl_app import models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images
from strategies.crafts import CRAFTS, Scene

SHAPE, CLASSES = (1, 4, 4), 3
LEVELS = torch.tensor([0.3, 0.45, 0.6, 0.75])


def images(levels=LEVELS, seed=5):
    """One image of each mean brightness, in both of its halves."""
    noise = 0.1 * torch.rand(len(levels), 2, 8, generator=torch.Generator().manual_seed(seed))
    return (noise - noise.mean(2, keepdim=True) + levels[:, None, None]).view(-1, *SHAPE)


def public(number=400):
    rng = torch.Generator().manual_seed(0)
    return (0.2 + 0.7 * torch.rand(number, 1, 1, 1, generator=rng)) + 0.1 * torch.rand(number, *SHAPE, generator=rng) - 0.05


def seen_by(craft, batches, rule=None, server_round=1, text="mlp(hidden=[20])", **settings):
    """What a malicious server sees of clients with these batches, each by itself."""
    craft = CRAFTS[craft](**settings)
    model = models.build(text, SHAPE, CLASSES, seed=1, front=craft.front(len(batches)))
    honest = models.parameters_of(model)
    rule = rule or LocalRule(batch_size=len(batches[0]))
    scene = Scene(model, public(), rule, 0)
    seen = []
    for client, x in enumerate(batches):
        params = {**honest, **craft.weights(honest, server_round, scene), **craft.own(honest, client, scene)}
        update = local_update(model, params, x, torch.arange(len(x)) % CLASSES, rule)
        seen.append(
            Observation(params=params, update=update, rule=rule, num_examples=len(x), server_round=server_round, client=client)
        )
    return seen, Task(model, Images(SHAPE), CLASSES)


def by_feature(x):
    """Three rounds of the feature attack on one batch."""
    rounds = [seen_by("fishing", [x], server_round=one, step=0.25, sharpness=1000.0)[0][0] for one in (1, 2, 3)]
    task = seen_by("fishing", [x], step=0.25)[1]
    return [replace(one, knowledge=Knowledge(repeats=True)) for one in rounds], task
