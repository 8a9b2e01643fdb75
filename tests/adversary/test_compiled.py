"""The compiled step of gradient matching is the step of gradient matching."""

import pytest
import torch

import adversary
from adversary.search.problem import Problem
from fl_app import models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Images


@pytest.mark.parametrize("labels", ["rows", "joint"])
@pytest.mark.parametrize("seed", [0, 1])  # the second one meets the graph of the first, and brings data of its own
def test_losses_and_gradients_are_the_same(labels, seed):
    rng = torch.Generator().manual_seed(seed)
    model = models.build("linear", (1, 8, 8), 3, seed=1)
    params, rule = models.parameters_of(model), LocalRule(batch_size=1)
    x, y = torch.rand((2, 1, 1, 8, 8), generator=rng), torch.tensor([[0], [2]])
    seen = [
        Observation(params=params, update=local_update(model, params, a, b, rule), rule=rule, num_examples=1, server_round=1)
        for a, b in zip(x, y, strict=True)
    ]
    classes = None if labels == "joint" else list(y)

    def step(compiled):
        attack = adversary.build(f"inverting_gradients(labels='{labels}', compiled={compiled})").matching()
        streams = [torch.Generator().manual_seed(number) for number in range(2)]
        problem = Problem(attack, [(one,) for one in seen], Task(model, Images((1, 8, 8)), 3), streams, classes)
        loss, gradients = problem.gradients(problem.draw())
        return [loss, *gradients.values()]

    plain, compiled = step(False), step(True)
    assert len(plain) == len(compiled) == (3 if labels == "joint" else 2)
    for ours, theirs in zip(compiled, plain, strict=True):
        assert not theirs.requires_grad
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
