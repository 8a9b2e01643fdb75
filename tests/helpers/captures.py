"""Observations of random tensors, and whether two are equal."""

import torch

from fl_app.core.local import LocalRule
from fl_app.core.observation import Observation

SHAPES = {"b.weight": (3, 2), "a": (4,), "scale": ()}


def observation(rng, dtype=torch.float32, shapes=SHAPES, **settings):
    """One with some settings of its own."""

    def draw():
        return {name: torch.randn(shape, generator=rng, dtype=dtype) for name, shape in shapes.items()}

    plain = {"rule": LocalRule(), "num_examples": 8, "server_round": 1, "node_id": 2**64 - 1, "client": 3}
    return Observation(**{"params": draw(), "update": draw(), **plain, **settings})


def equal(a, b):
    """Whether two say the same to the last bit."""

    def same(x, y):
        return list(x) == list(y) and all(torch.equal(x[n], y[n]) and x[n].dtype == y[n].dtype for n in x)

    facts = ("rule", "num_examples", "server_round", "node_id", "client", "visibility")
    labels = (a.knowledge.labels, b.knowledge.labels)
    return (
        same(a.params, b.params)
        and same(a.update, b.update)
        and all(getattr(a, key) == getattr(b, key) for key in facts)
        and (labels[0] is labels[1] is None or torch.equal(*labels))
        and a.knowledge.defense == b.knowledge.defense
        and same(a.knowledge.statistics, b.knowledge.statistics)
    )
