"""Updates of larger images: a task of a model, images that are smooth, and what is seen of them."""

import torch
from torch.nn import functional as F

from fl_app import models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images

SHAPE = (3, 32, 32)
NORMALIZE = ((0.5, 0.4, 0.3), (0.2, 0.3, 0.25))


def task_of(text, normalize=NORMALIZE):
    net = models.build(text, SHAPE, 4, seed=2, normalize=normalize)
    return Task(net, Images(SHAPE), 4), models.parameters_of(net)


def smooth(number, seed=0):
    """Images without small details."""
    small = torch.rand(number, 1, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(small.flatten(0, 1), size=SHAPE[1:], mode="bilinear").view(number, 1, *SHAPE)


def seen_of(task, params, x, rule=None):
    rule = rule or LocalRule(batch_size=1)
    return [
        Observation(
            params=params,
            update=local_update(task.model, params, one, torch.tensor([place % 4]), rule),
            rule=rule,
            num_examples=1,
            server_round=1,
            client=place,
            knowledge=Knowledge(labels=torch.tensor([place % 4])),
        )
        for place, one in enumerate(x)
    ]
