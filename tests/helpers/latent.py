"""One step of a small model with a latent layer."""

import torch

from fl_app import models
from fl_app.core.local import Step

SHAPE = (1, 12, 12)


def step_of(text, rng, shape=SHAPE, examples=6):
    model = models.build(text, shape, 5, normalize=([0.3] * shape[0], [0.5] * shape[0]))
    x = torch.rand(examples, *shape, generator=rng)
    return Step(models.parameters_of(model), model, x, torch.arange(examples) % 5)
