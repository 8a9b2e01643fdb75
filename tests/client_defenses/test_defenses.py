"""Contracts that every registered defense must keep, and how chains compose."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn import functional as F

import client_defenses
from client_defenses import Chain, Defense, Memory, contracts
from client_defenses.refiner import Refiner
from client_defenses.tools.evaluator import Evaluator, EvaluatorFacts, EvaluatorTraining, build_network, save
from fl_app import models
from fl_app.core.local import Step
from fl_app.core.spec import SpecError


@pytest.fixture
def step(rng):
    model = models.build("lenet", (1, 28, 28), 10)
    return Step(models.parameters_of(model), model, torch.rand(4, 1, 28, 28, generator=rng), torch.arange(4))


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Builds a defense by its name alone; refiner, which needs a file, with a network that has learnt nothing."""
    path = tmp_path_factory.mktemp("evaluator") / "untrained.safetensors"
    facts = EvaluatorFacts(shape=(1, 28, 28), training=EvaluatorTraining(width=4))
    save(Evaluator(build_network(facts.shape, 4), facts), path)

    def build(name):
        defense = client_defenses.build(name)
        return replace(defense, evaluator=str(path)) if isinstance(defense, Refiner) else defense

    return build


@pytest.mark.parametrize("contract", contracts.CONTRACTS)
@pytest.mark.parametrize("name", sorted(client_defenses.DEFENSES))
def test_every_defense_keeps_every_contract(name, contract, built):
    contracts.CONTRACTS[contract](built(name))


def test_no_defense_is_the_plain_gradient(step):
    plain = step.gradient()
    sent = client_defenses.build("none").protect(step, Memory.fresh(0))
    assert all(torch.equal(plain[key], sent[key]) for key in plain)


def test_backward_stands_in_for_loss_backward(step):
    F.cross_entropy(step.model(step.x), step.y).backward()
    expected = {name: value.grad.clone() for name, value in step.model.named_parameters()}
    step.model.zero_grad()
    for times in (1, 2):  # like backward, it accumulates
        client_defenses.build("none").backward(step.model, step.x, step.y)
        for name, value in step.model.named_parameters():
            torch.testing.assert_close(value.grad, times * expected[name])


@dataclass(frozen=True, kw_only=True)
class Add(Defense):
    """Adds a constant to the gradient, and counts."""

    value: float = 1.0

    def on_gradient(self, grads, step, memory):
        memory.state["count"] = memory.state.get("count", torch.zeros(1)) + self.value
        return {key: value + self.value for key, value in grads.items()}


@dataclass(frozen=True, kw_only=True)
class Double(Defense):
    """Doubles the gradient."""

    def on_gradient(self, grads, step, memory):
        return {key: 2 * value for key, value in grads.items()}


@dataclass(frozen=True, kw_only=True)
class Zero(Defense):
    """Takes a gradient of zero."""

    def gradient(self, step, memory):
        return {key: torch.zeros_like(value) for key, value in step.params.items()}


def test_a_chain_keeps_its_order_and_each_part_its_own_memory(step):
    memory = Memory.fresh(0)
    chain = Chain(parts=(Zero(), Add(value=3.0), Double(), Add(value=5.0)))
    for _ in range(2):
        sent = chain.protect(step, memory)
    assert all(torch.all(value == (0 + 3) * 2 + 5) for value in sent.values())
    assert {key: value.item() for key, value in memory.state.items()} == {"1/count": 6.0, "3/count": 10.0}


def test_two_defenses_that_take_the_gradient_are_refused():
    with pytest.raises(SpecError, match="Zero and Zero each define how the gradient is taken"):
        Chain(parts=(Zero(), Add(), Zero()))


def test_a_sum_builds_a_chain():
    assert isinstance(client_defenses.build("none + none"), Chain)
    with pytest.raises(SpecError, match="unknown defense 'nothing'"):
        client_defenses.build("none + nothing")
