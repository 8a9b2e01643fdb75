"""Updates of real digits, attacks on them, and how close they come."""

import torch

import adversary
from adversary import Observation, Task
from fl_app import data, models
from fl_app.core.local import LocalRule, local_update

SHAPE = (1, 28, 28)


def seen_of(x, y, rule=None, model_text="lenet", **more):
    model = models.build(model_text, SHAPE, 10, seed=3)
    params = models.parameters_of(model)
    rule = rule or LocalRule(batch_size=x.shape[1])
    seen = [
        Observation(
            params=params,
            update=local_update(model, params, a, b, rule),
            rule=rule,
            num_examples=len(a),
            server_round=1,
            client=i,
            **more,
        )
        for i, (a, b) in enumerate(zip(x, y, strict=True))
    ]
    return seen, Task(model, SHAPE, 10)


def digits(targets, examples, start=0):
    x, y = data.load("mnist").train.at(slice(start, start + targets * examples))
    return x.view(targets, examples, *SHAPE), y.view(targets, examples)


def psnr(a, b):
    return -10 * (a - b).square().flatten(2).mean(-1).log10()


def attack(text, seen, task, seed=0):
    return adversary.build(text)(seen, task, torch.Generator().manual_seed(seed))
