"""Batches of rows of a small table, and what a server sees of them."""

import torch

from fl_app import models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Observation, Task
from fl_app.core.table import Column, Rows

ROWS = Rows((Column("age"), Column("sex", ("f", "m")), Column("pay"), Column("job", ("a", "b", "c")), Column("size")))


def scene(batch, targets=2, model="mlp(hidden=[64, 32])", seed=0):
    """(x, y, what is seen, the task) of some batches."""
    net = models.build(model, ROWS.shape, 2, seed=3)
    params, rule, rng = models.parameters_of(net), LocalRule(batch_size=batch), torch.Generator().manual_seed(seed)
    x = ROWS.noise(targets * batch, rng).view(targets, batch, -1)
    y = torch.randint(2, (targets, batch), generator=rng)
    seen = [
        Observation(
            params=params,
            update=local_update(net, params, x[i], y[i], rule),
            rule=rule,
            num_examples=batch,
            server_round=1,
            client=i,
        )
        for i in range(targets)
    ]
    return x, y, seen, Task(net, ROWS, 2)
