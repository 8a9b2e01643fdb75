"""What every defense promises, as functions that raise AssertionError with a plain sentence.

The tests run them on all registered defenses, `thorns check` and a generated test on one from outside.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from client_defenses.base import Chain, Defense, Memory, beyond_messages
from client_defenses.none import NoDefense
from fl_app.core import halfprecision
from fl_app.core.contracts import copied, must, same, settings, tracked
from fl_app.core.local import Step, Tensors

HUGE = 20_000_000
"""Entries; more than torch.quantile takes."""


def example_step(dtype: torch.dtype = torch.float32) -> Step:
    """Four images of four classes and a small convolutional network, the same each time."""
    draw = torch.Generator().manual_seed(7)
    with torch.random.fork_rng(devices=[]):  # the layers draw weights that are not used
        convolutions = nn.Conv2d(1, 6, 5, stride=2), nn.Sigmoid(), nn.Conv2d(6, 8, 5, stride=2), nn.Sigmoid()
        model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(8 * 4 * 4, 10))
    params = {name: 0.2 * torch.randn(value.shape, generator=draw).to(dtype) for name, value in model.named_parameters()}
    model = model.to(dtype)
    model.load_state_dict(params)
    return Step(params, model, torch.rand(4, 1, 28, 28, generator=draw).to(dtype), torch.arange(4))


def odd_message(dtype: torch.dtype = torch.float32) -> Tensors:
    """Tensors of all kinds of shapes: one not contiguous, one of a single entry, a number, and empty ones."""
    draw = torch.Generator().manual_seed(7)
    shapes = {"matrix": (6, 5), "image": (2, 3, 4, 4), "one": (1,), "number": (), "nothing": (0,), "none": (3, 0)}
    message = {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in shapes.items()}
    return {**message, "turned": torch.randn(7, 4, generator=draw).to(dtype).t(), "zeros": torch.zeros(3, dtype=dtype)}


def _check_sent(sent: Any, given: Tensors) -> None:
    """Names, shapes and types as given, all values finite."""
    must(isinstance(sent, dict), f"what is sent is a {type(sent).__name__}, not a dict of tensors by name")
    must(sent.keys() == given.keys(), f"it sends {sorted(sent)}, but was given {sorted(given)}")
    for name, value in given.items():
        got = sent[name]
        must(isinstance(got, Tensor), f"it sends a {type(got).__name__} for '{name}', not a tensor")
        must(got.shape == value.shape, f"'{name}' has the shape {tuple(got.shape)}, but was given as {tuple(value.shape)}")
        must(got.dtype == value.dtype, f"'{name}' has the type {got.dtype}, but was given as {value.dtype}")
        must(not got.requires_grad, f"'{name}' carries the graph that it was computed by: detach it")
        must(bool(got.isfinite().all()), f"'{name}' holds values that are not finite")


def seeded(defense: Defense) -> None:
    """The same seed gives the same update, whatever torch's global generator does, which stays as it is."""
    step, before = example_step(), torch.random.get_rng_state()
    first = defense.protect(step, Memory.fresh(3))
    _check_sent(first, step.params)
    untouched = torch.equal(before, torch.random.get_rng_state())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        again = defense.protect(step, Memory.fresh(3))
    torch.random.set_rng_state(before)
    must(same(first, again), "the same seed gives another update: take every draw from memory.rng")
    must(untouched, "it draws from torch's global generator: take every draw from memory.rng")


def inputs_stay(defense: Defense) -> None:
    """Weights, images, labels and gradients are left as they were."""
    step = example_step()
    params, x, y = copied(step.params), step.x.clone(), step.y.clone()
    defense.protect(step, Memory.fresh(3))
    must(same(params, step.params), "it changes the weights in place")
    must(torch.equal(x, step.x) and torch.equal(y, step.y), "it changes the images or the labels in place")
    must(not tracked([*step.params.values(), step.x]), "it leaves weights or images that require a gradient: detach them first")
    given = odd_message()
    before = copied(given)
    defense.transform(given, Memory.fresh(3))
    must(same(before, given), "transform changes the gradient in place")


def memory_survives(defense: Defense) -> None:
    """What it remembers between rounds are tensors, which survive the way through a client's state."""
    from fl_app.core.wire import to_record, to_tensors  # imports Flower

    step, kept, moved = example_step(), Memory.fresh(3), Memory.fresh(3)
    for memory in (kept, moved):
        defense.protect(step, memory)
    strange = [name for name, value in moved.state.items() if not isinstance(value, Tensor)]
    must(not strange, f"it remembers {strange} as something else than a tensor")
    moved.state = to_tensors(to_record(moved.state))
    sent = []
    for memory in (kept, moved):
        after = Memory.fresh(4)
        after.state = memory.state
        sent.append(defense.protect(step, after))
    must(same(*sent), "after a restart it sends something else: whatever it remembers belongs into memory.state")


def types_stay(defense: Defense) -> None:
    """A gradient in half or double precision is sent in that type, and finite."""
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        if beyond_messages(defense):
            step = example_step(dtype)
            halfprecision.require(step.params.values())
            given, sent = step.params, defense.protect(step, Memory.fresh(3))
        else:
            given = odd_message(dtype)
            sent = defense.transform(given, Memory.fresh(3))
        _check_sent(sent, given)


def any_shapes(defense: Defense) -> None:
    """A message may hold tensors of any shape, empty ones and none at all."""
    # Defenses that look at more than the message have the identity here, so this holds for them too.
    given = odd_message()
    _check_sent(defense.transform(given, Memory.fresh(3)), given)
    must(defense.transform({}, Memory.fresh(3)) == {}, "of an empty message it sends something")


def huge_tensor(defense: Defense) -> None:
    """A tensor of 20 million entries is no problem for a defense that works on messages."""
    if beyond_messages(defense):
        return
    given = {"huge": torch.linspace(-1, 1, HUGE)}
    _check_sent(defense.transform(given, Memory.fresh(3)), given)


def chained(defense: Defense) -> None:
    """In a chain after no defense it sends what it sends alone."""
    step, chain = example_step(), Chain(parts=(NoDefense(), defense))
    alone, among = Memory.fresh(3), Memory.fresh(3)
    for _ in range(2):
        one, other = defense.protect(step, alone), chain.protect(step, among)
        must(same(one, other), "in a chain it sends something else than alone")


def expectation(defense: Defense) -> None:
    """What an attacker expects of it (`expected`) can be vectorised and differentiated, and is no constant."""
    draw, true = torch.Generator().manual_seed(5), example_step().gradient()
    guesses = {name: torch.randn(3, *value.shape, generator=draw) for name, value in true.items()}

    def distance(guess: Tensors) -> Tensor:
        expected = defense.expected(guess)
        return torch.stack([(expected[name] - value).square().sum() for name, value in true.items()]).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # vmap warns where it falls back to a loop
        found: Tensors = vmap(grad(distance))(guesses)
        must(any(bool(value.any()) for value in found.values()), "what is expected does not depend on the gradient")
        leaves = {name: value.clone().requires_grad_() for name, value in guesses.items()}
        again = torch.autograd.grad(vmap(distance)(leaves).sum(), list(leaves.values()))
    single: Tensors = grad(distance)({name: several[1] for name, several in guesses.items()})
    for (name, value), other in zip(found.items(), again, strict=True):
        must(bool(value.isfinite().all()), f"the derivative of what is expected of '{name}' is not finite")
        must(
            torch.allclose(value, other, atol=1e-5, rtol=1e-4),
            f"torch.func and autograd differ in what is expected of '{name}'",
        )
        must(torch.allclose(value[1], single[name], atol=1e-4, rtol=1e-4), f"'{name}' depends on what is attacked beside it")


CONTRACTS: dict[str, Callable[[Defense], None]] = {
    "settings": settings,
    "seeded": seeded,
    "inputs_stay": inputs_stay,
    "memory_survives": memory_survives,
    "types_stay": types_stay,
    "any_shapes": any_shapes,
    "huge_tensor": huge_tensor,
    "chained": chained,
    "expectation": expectation,
}


def changes_nothing(defense: Defense) -> None:
    """With these settings, at no strength, it sends the plain gradient: for the test of a defense that can be turned down."""
    step = example_step()
    sent, plain = defense.protect(step, Memory.fresh(3)), step.gradient()
    _check_sent(sent, plain)
    wrong = [name for name, value in plain.items() if not torch.allclose(sent[name], value, atol=1e-7, rtol=1e-5)]
    must(not wrong, f"at no strength it still changes {wrong}")
