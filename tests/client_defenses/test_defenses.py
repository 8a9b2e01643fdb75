"""Contracts that every registered defense must keep, and how chains compose."""

import warnings
from dataclasses import dataclass, replace

import pytest
import torch
from torch.func import grad, vmap
from torch.nn import functional as F

import client_defenses
from client_defenses import Chain, Defense, Memory
from client_defenses.base import beyond_messages
from client_defenses.refiner import Refiner
from client_defenses.tools.evaluator import Evaluator, EvaluatorFacts, EvaluatorTraining, build_network, save
from fl_app import models
from fl_app.core.local import Step
from fl_app.core.spec import SpecError
from fl_app.core.wire import to_record, to_tensors


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


@pytest.mark.parametrize("name", sorted(client_defenses.DEFENSES))
def test_every_defense_is_seeded_and_changes_nothing_in_place(name, step, built):
    defense = built(name)
    before = {key: value.clone() for key, value in step.params.items()}, step.x.clone(), step.y.clone()
    first, again = defense.protect(step, Memory.fresh(3)), defense.protect(step, Memory.fresh(3))
    assert first.keys() == step.params.keys()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert all(torch.equal(before[0][key], value) for key, value in step.params.items())
    assert torch.equal(before[1], step.x)
    assert torch.equal(before[2], step.y)


@pytest.mark.parametrize("name", sorted(client_defenses.DEFENSES))
def test_the_memory_of_every_defense_survives_the_client_state(name, step, built):
    defense = built(name)
    kept, moved = Memory.fresh(3), Memory.fresh(3)
    for memory in (kept, moved):
        defense.protect(step, memory)
    moved.state = to_tensors(to_record(moved.state))
    kept.rng.manual_seed(4), moved.rng.manual_seed(4)
    one, other = defense.protect(step, kept), defense.protect(step, moved)
    assert all(torch.equal(one[key], other[key]) for key in one)


MESSAGE_LEVEL = sorted(name for name in client_defenses.DEFENSES if not beyond_messages(client_defenses.build(name)))


def odd_message(rng, dtype=torch.float32):
    """Tensors of all kinds of shapes: one not contiguous, one of a single entry, a number, and empty ones."""
    shapes = {"matrix": (6, 5), "image": (2, 3, 4, 4), "one": (1,), "number": (), "nothing": (0,), "none": (3, 0)}
    message = {name: torch.randn(shape, generator=rng).to(dtype) for name, shape in shapes.items()}
    return {**message, "turned": torch.randn(7, 4, generator=rng).to(dtype).t(), "zeros": torch.zeros(3, dtype=dtype)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", sorted(client_defenses.DEFENSES))
def test_every_defense_sends_the_type_it_is_given(name, dtype, step, rng, built):
    defense = built(name)
    if beyond_messages(defense):
        model = models.build("lenet", (1, 28, 28), 10).to(dtype)
        given = models.parameters_of(model)
        sent = defense.protect(Step(given, model, step.x.to(dtype), step.y), Memory.fresh(3))
    else:
        given = odd_message(rng, dtype)
        sent = defense.transform(given, Memory.fresh(3))
    assert sent.keys() == given.keys()
    assert all((sent[key].dtype, sent[key].shape) == (dtype, value.shape) for key, value in given.items())
    assert all(value.isfinite().all() for value in sent.values())


@pytest.mark.parametrize("name", sorted(client_defenses.DEFENSES))
def test_every_defense_transforms_a_message_of_any_shapes(name, rng):
    # Defenses that look at more than the message have the identity here, so this holds for them too.
    defense, given = client_defenses.build(name), odd_message(rng)
    before = {key: value.clone() for key, value in given.items()}
    sent, nothing = defense.transform(given, Memory.fresh(3)), defense.transform({}, Memory.fresh(3))
    assert nothing == {}
    assert sent.keys() == given.keys()
    assert all(sent[key].shape == value.shape and sent[key].isfinite().all() for key, value in given.items())
    assert all(torch.equal(before[key], value) for key, value in given.items())


@pytest.mark.parametrize("name", MESSAGE_LEVEL)
def test_every_defense_on_messages_takes_a_huge_tensor(name):
    given = torch.linspace(-1, 1, 20_000_000)  # more than torch.quantile takes
    sent = client_defenses.build(name).transform({"huge": given}, Memory.fresh(3))["huge"]
    assert sent.shape == given.shape
    assert sent.isfinite().all()


@pytest.mark.parametrize("name", sorted(client_defenses.DEFENSES))
def test_what_an_attacker_expects_of_every_defense_can_be_vectorised_and_differentiated(name, step, rng):
    defense = client_defenses.build(name)
    true = step.gradient()
    guesses = {key: torch.randn(3, *value.shape, generator=rng) for key, value in true.items()}

    def distance(guess):
        expected = defense.expected(guess)
        return sum((expected[key] - value).square().sum() for key, value in true.items())

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # vmap warns where it falls back to a loop
        slopes = vmap(grad(distance))(guesses)
        leaves = {key: value.clone().requires_grad_() for key, value in guesses.items()}
        again = torch.autograd.grad(vmap(distance)(leaves).sum(), list(leaves.values()))
    for slope, other, (key, value) in zip(slopes.values(), again, guesses.items(), strict=True):
        assert slope.isfinite().all()
        assert slope.shape == value.shape
        torch.testing.assert_close(slope, other)
        single = grad(distance)({each: several[1] for each, several in guesses.items()})
        torch.testing.assert_close(slope[1], single[key], atol=1e-4, rtol=1e-4)
    assert any(slope.any() for slope in slopes.values())


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
