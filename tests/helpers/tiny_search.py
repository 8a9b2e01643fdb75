"""Targets of a search that costs nothing: a linear network on four pixels, two targets of two examples."""

import torch
from torch import nn

from adversary.search.matching import Matching
from adversary.search.problem import Problem
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images

CLASSES, EXAMPLES, SHAPE = 3, 2, (1, 2, 2)
MODEL = nn.Sequential(nn.Flatten(), nn.Linear(4, CLASSES))
TASK = Task(MODEL, Images(SHAPE), CLASSES)
RULE = LocalRule(batch_size=EXAMPLES)
Y = torch.tensor([[0, 2], [1, 1]])


def weights(seed):
    rng = torch.Generator().manual_seed(seed)
    return {"1.weight": torch.randn(CLASSES, 4, generator=rng), "1.bias": torch.randn(CLASSES, generator=rng)}


ROUNDS = [weights(1), weights(2)]
X = torch.rand(2, EXAMPLES, *SHAPE, generator=torch.Generator().manual_seed(3))


def targets(rounds=1, rule=RULE, **knowledge):
    """Two targets, each seen in the first rounds."""
    return [
        tuple(
            Observation(
                params=params,
                update=local_update(MODEL, params, x, y, rule),
                rule=rule,
                num_examples=EXAMPLES,
                server_round=number,
                client=client,
                knowledge=Knowledge(**knowledge),
            )
            for number, params in enumerate(ROUNDS[:rounds])
        )
        for client, (x, y) in enumerate(zip(X, Y, strict=True))
    ]


def streams(first=10):
    return [torch.Generator().manual_seed(first + i) for i in range(2)]


def problem(rounds=1, classes=Y, rule=RULE, knowledge=None, **settings):
    settings = {"seeds": 3, **settings}
    return Problem(Matching(**settings), targets(rounds, rule, **(knowledge or {})), TASK, streams(), classes)
