"""CMA-ES, one strategy per target."""

import numpy as np
import pytest
import torch

from adversary import AttackError
from adversary.search.cma_es import CMASteps
from adversary.search.optimizers import CMA

GOALS = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.0, 1.0, 1.0, -1.0]])


def losses(variables, goals=GOALS):
    """Squared distances with narrow valleys, (targets, seeds)."""
    point = torch.cat([variables["a"], variables["b"].flatten(2)], dim=2)
    return ((point - goals[:, None]).square() * torch.tensor([1.0, 100.0, 1.0, 10.0])).sum(-1)


def start(targets=2, seeds=10):
    drawn = [torch.randn(seeds, 4, generator=torch.Generator().manual_seed(i)) for i in range(targets)]
    point = torch.stack(drawn)
    return {"a": point[..., :3], "b": point[..., 3:].unsqueeze(-1)}


def ran(steps, variables, number, goals=GOALS):
    for _ in range(number):
        variables = steps.step(variables, {}, losses(variables, goals))
    return variables


def test_each_target_is_found_and_shapes_stay():
    assert losses(start()).amin(1).min() > 0.5
    found = ran(CMASteps(0.5), start(), 120)
    assert (found["a"].shape, found["b"].shape) == ((2, 10, 3), (2, 10, 1, 1))
    assert losses(found).amin(1).max() < 1e-4


def test_draws_are_the_targets_own_and_leave_the_global_generators_alone():
    before, torchs = np.random.get_state()[1].copy(), torch.random.get_rng_state()
    together = ran(CMASteps(0.5), start(), 6)
    assert (np.random.get_state()[1] == before).all()
    assert torch.equal(torch.random.get_rng_state(), torchs)
    second = {name: value[1:] for name, value in start().items()}
    alone = ran(CMASteps(0.5), second, 6, GOALS[1:])
    for name, value in alone.items():
        torch.testing.assert_close(value[0], together[name][1])
    assert not torch.equal(together["a"][0], together["a"][1])


@pytest.mark.parametrize("number", [0, 1, 5])
def test_a_strategy_goes_on_from_its_state_to_the_last_bit(number):
    steps = CMASteps(0.5)
    middle = ran(steps, start(), number)
    again = CMASteps(0.5)
    again.restore(steps.state())
    whole, rest = ran(steps, middle, 4), ran(again, middle, 4)
    assert all(torch.equal(whole[name], rest[name]) for name in whole)


def test_a_loss_that_is_no_number_is_the_worst():
    steps, variables = CMASteps(0.5), start()
    for _ in range(120):
        loss = losses(variables)
        loss[:, 0], loss[:, 1] = torch.nan, torch.inf
        variables = steps.step(variables, {}, loss)
    assert losses(variables)[:, 2:].amin(1).max() < 1e-2


def test_too_few_seeds_and_too_many_dimensions_are_refused():
    with pytest.raises(AttackError, match="cma needs a population: seeds=20, say, not seeds=1"):
        CMASteps(0.5).step(start(seeds=1), {}, torch.zeros(2, 1))
    wide = {"a": torch.zeros(1, 4, 5000)}
    with pytest.raises(AttackError, match="at most 4096 numbers, not 5000"):
        CMASteps(0.5).step(wide, {}, torch.zeros(1, 4))


def test_it_needs_no_gradients():
    assert not CMA().needs_gradients
    assert CMA().survives
    assert isinstance(CMA(lr=0.3).start(lambda _: torch.empty(0)), CMASteps)
