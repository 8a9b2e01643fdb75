"""The contracts of defenses notice what they are there for: each of these breaks one."""

import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

from client_defenses import Defense, contracts
from client_defenses.dp_gaussian import DPGaussian
from fl_app.core.spec import SpecError

FROZEN = dataclass(frozen=True, kw_only=True)


@FROZEN
class Half(Defense):
    """Keeps every contract, by nearly nothing."""

    factor: float = 0.5

    def transform(self, grads, memory):
        return {name: self.factor * value for name, value in grads.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class Unequal(Defense):
    """Is equal to nothing, itself included."""

    def __eq__(self, other):
        return False

    __hash__ = Defense.__hash__


class Bare(Defense):
    factor: float = 0.5


@dataclass(frozen=True)
class Positional(Defense):
    factor: float = 0.5


@FROZEN
class Unseeded(Defense):
    def transform(self, grads, memory):
        return {name: value + torch.randn(value.shape).to(value) for name, value in grads.items()}


@FROZEN
class GlobalSeed(Defense):
    def transform(self, grads, memory):
        torch.manual_seed(0)
        return {name: value + torch.randn(value.shape).to(value) for name, value in grads.items()}


@FROZEN
class Borrowed(Defense):
    """Draws from the global generator and puts it back."""

    def transform(self, grads, memory):
        with torch.random.fork_rng(devices=[]):
            return {name: value + torch.randn(value.shape).to(value) for name, value in grads.items()}


@FROZEN
class InPlace(Defense):
    def transform(self, grads, memory):
        return {name: value.mul_(0.5) for name, value in grads.items()}


@FROZEN
class ChangesWeights(Defense):
    def on_gradient(self, grads, step, memory):
        for value in step.params.values():
            value.mul_(1.5)
        return grads


@FROZEN
class ChangesImages(Defense):
    def on_gradient(self, grads, step, memory):
        step.x.mul_(0.5)
        return grads


@FROZEN
class ChangesLabels(Defense):
    def on_gradient(self, grads, step, memory):
        step.y.zero_()
        return grads


@FROZEN
class NoDict(Defense):
    def transform(self, grads, memory):
        return list(grads)


@FROZEN
class Invents(Defense):
    def transform(self, grads, memory):
        return grads or {"more": torch.zeros(1)}


@FROZEN
class SteepExpectation(Defense):
    def expected(self, grads):
        return {name: (value - value).sqrt() + value for name, value in grads.items()}


@FROZEN
class NoTensor(Defense):
    def transform(self, grads, memory):
        memory.state["number"] = 3
        return grads


@FROZEN
class BesideTheState(Defense):
    """Counts in its memory, but not in the state."""

    def transform(self, grads, memory):
        memory.times = getattr(memory, "times", 0) + 1
        return {name: value + memory.times for name, value in grads.items()}


@FROZEN
class Remembers(Defense):
    """Counts outside of its memory."""

    def transform(self, grads, memory):
        COUNTS.append(1)
        return {name: value + len(COUNTS) for name, value in grads.items()}


COUNTS = []


@FROZEN
class Widens(Defense):
    def transform(self, grads, memory):
        return {name: value.float() for name, value in grads.items()}


@FROZEN
class NeedsEntries(Defense):
    def transform(self, grads, memory):
        return {name: value / value.abs().max() for name, value in grads.items()}


@FROZEN
class Quantile(Defense):
    def transform(self, grads, memory):
        return {name: value * (value > value.quantile(0.5)) if value.numel() else value for name, value in grads.items()}


@FROZEN
class Flattens(Defense):
    def transform(self, grads, memory):
        return {name: value.flatten() for name, value in grads.items()}


@FROZEN
class NoTensors(Defense):
    def transform(self, grads, memory):
        return {name: value.tolist() for name, value in grads.items()}


@FROZEN
class Tracks(Defense):
    def on_gradient(self, grads, step, memory):
        step.x.requires_grad_()
        return grads


@FROZEN
class SendsGraphs(Defense):
    def transform(self, grads, memory):
        return {name: value.clone().requires_grad_() * 2 for name, value in grads.items()}


@FROZEN
class Leaves(Defense):
    def transform(self, grads, memory):
        return dict(list(grads.items())[1:])


@FROZEN
class NotFinite(Defense):
    def transform(self, grads, memory):
        return {name: value.log() for name, value in grads.items()}


@FROZEN
class BlindExpectation(Defense):
    def expected(self, grads):
        return {name: torch.zeros_like(value) for name, value in grads.items()}


@FROZEN
class BranchingExpectation(Defense):
    def expected(self, grads):
        return {name: value if value.norm() > 1 else 2 * value for name, value in grads.items()}


def test_what_defenses_are_tried_on():
    """Four images of four classes, and weights of one size."""
    step = contracts.example_step()
    assert step.x.shape == (4, 1, 28, 28)
    assert step.y.tolist() == [0, 1, 2, 3]
    for name, value in step.params.items():
        if value.ndim > 1:
            assert value.std().item() == pytest.approx(0.2, rel=0.2), name
            assert torch.equal(step.model.get_parameter(name), value)
    odd = contracts.odd_message(torch.float64)
    assert not odd["turned"].is_contiguous()
    assert {value.dtype for value in odd.values()} == {torch.float64}
    assert [odd[name].numel() for name in ("one", "number", "nothing", "none")] == [1, 1, 0, 0]


def test_a_defense_that_does_little_keeps_them_all():
    for contract in contracts.CONTRACTS.values():
        contract(Half())


@pytest.mark.parametrize(
    ("broken", "contract", "said"),
    [
        (Bare, "settings", "Bare is no dataclass: use @dataclass"),
        (Unequal, "settings", "two with the same settings are not equal"),
        (Unseeded, "seeded", "take every draw from memory.rng"),
        (GlobalSeed, "seeded", "torch's global generator"),
        (Borrowed, "seeded", "the same seed gives another update"),
        (Leaves, "seeded", "it sends"),
        (InPlace, "inputs_stay", "transform changes the gradient in place"),
        (ChangesWeights, "inputs_stay", "changes the weights in place"),
        (ChangesImages, "inputs_stay", "changes the images or the labels in place"),
        (ChangesLabels, "inputs_stay", "changes the images or the labels in place"),
        (NoDict, "any_shapes", "what is sent is a list, not a dict"),
        (Invents, "any_shapes", "of an empty message it sends something"),
        (SteepExpectation, "expectation", "is not finite"),
        (NoTensor, "memory_survives", r"it remembers \['number'\] as something else than a tensor"),
        (Remembers, "memory_survives", "whatever it remembers belongs into memory.state"),
        (Widens, "types_stay", "has the type torch.float32, but was given as torch.float16"),
        (Flattens, "any_shapes", r"has the shape \(30,\), but was given as \(6, 5\)"),
        (Leaves, "any_shapes", "it sends"),
        (NoTensors, "any_shapes", "it sends a list for 'matrix', not a tensor"),
        (Tracks, "inputs_stay", "leaves weights or images that require a gradient"),
        (SendsGraphs, "any_shapes", "carries the graph that it was computed by"),
        (NotFinite, "any_shapes", "values that are not finite"),
        (BesideTheState, "chained", "in a chain it sends something else than alone"),
        (BlindExpectation, "expectation", "does not depend on the gradient"),
    ],
)
def test_a_broken_contract_is_said_in_a_sentence(broken, contract, said):
    before = torch.random.get_rng_state()
    with pytest.raises(AssertionError, match=said):
        contracts.CONTRACTS[contract](broken())
    if contract == "seeded":
        assert torch.equal(before, torch.random.get_rng_state()), "the check leaves the generator as it found it"


@pytest.mark.parametrize(
    ("broken", "contract"), [(NeedsEntries, "any_shapes"), (Quantile, "huge_tensor"), (BranchingExpectation, "expectation")]
)
def test_what_raises_breaks_a_contract_too(broken, contract):
    with pytest.raises(RuntimeError):
        contracts.CONTRACTS[contract](broken())


def test_settings_that_are_not_given_by_name_are_refused_at_once():
    with pytest.raises(
        SpecError, match=r"Positional: factor must be given by name: use @dataclass\(frozen=True, kw_only=True\)"
    ):
        Positional()


def test_at_no_strength_nothing_changes():
    contracts.changes_nothing(DPGaussian(scale=0.0, clip=None))
    with pytest.raises(AssertionError, match="at no strength it still changes"):
        contracts.changes_nothing(DPGaussian(scale=0.1))


def test_checks_hold_under_python_without_assertions():
    code = "from client_defenses import Defense, contracts\nclass Bare(Defense): pass\ncontracts.settings(Bare())"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False)
    assert "Bare is no dataclass" in done.stderr
