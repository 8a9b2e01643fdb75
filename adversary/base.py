"""What an attack sees, what it is asked, and what it answers. There is no way from here to the clients' data."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from fl_app.local import LocalRule, Tensors
from fl_app.spec import Checked

Visibility = Literal["individual", "aggregate"]


class AttackError(ValueError):
    """An attack that cannot be run on these observations; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What was granted to the attacker beyond the protocol; printed beside every number."""

    labels: Tensor | None = None
    """The true classes of the examples, int64 (examples,), in no particular order."""
    defense: str | None = None
    """The spec of the clients' defense."""
    statistics: Tensors = field(default_factory=dict)
    """BatchNorm statistics of the client's batch: layer name -> (2, channels), means and variances."""

    repeats: bool = False
    """That the client used the same examples in all of its rounds that were captured."""
    evaluator: bool = False
    """The client's own evaluation network; the attack's spec names its file."""

    @property
    def ledger(self) -> tuple[str, ...]:
        """The names of what was granted, for people."""
        granted = {
            "labels": self.labels is not None,
            "defense": self.defense is not None,
            "bn statistics": bool(self.statistics),
            "repeated examples": self.repeats,
            "evaluation network": self.evaluator,
        }
        return tuple(name for name, given in granted.items() if given)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """All that the server sees of one client in one round (or of all of them, if it sees only the aggregate)."""

    params: Tensors
    update: Tensors
    rule: LocalRule
    num_examples: int
    server_round: int
    node_id: int = 0
    client: int = 0
    """The client's number in the roster; -1 for an aggregate."""
    visibility: Visibility = "individual"
    knowledge: Knowledge = field(default_factory=Knowledge)


@dataclass(frozen=True)
class Task:
    """The public facts: the architecture, the shape of an input in [0, 1], the number of classes."""

    model: nn.Module
    input_shape: tuple[int, ...]
    num_classes: int


class Guess(NamedTuple):
    """x: (targets, examples, *input_shape) in [0, 1]; y: int64 (targets, examples); loss: (targets,), the attack's own."""

    x: Tensor
    y: Tensor
    loss: Tensor


@dataclass(frozen=True, kw_only=True)
class Attack(Checked, ABC):
    """Settings of an attack; subclasses write `run`, for all targets at once."""

    @abstractmethod
    def run(self, seen: Sequence[Observation], task: Task, rng: torch.Generator) -> Guess:
        """Guess the examples behind compatible observations."""

    @final
    def __call__(self, seen: Sequence[Observation], task: Task, rng: torch.Generator) -> Guess:
        """Check the observations, run the attack, check the guess."""
        if not seen:
            raise AttackError("there is nothing to attack: no observation was given")
        first = compatibility(seen[0])
        for other in seen[1:]:
            if compatibility(other) != first:
                raise AttackError("these observations differ in rule, number of examples or parameters: attack them in groups")
        guess = self.run(seen, task, rng)
        expected = (len(seen), seen[0].num_examples, *task.input_shape)
        if guess.x.shape != expected or guess.y.shape != expected[:2] or guess.loss.shape != expected[:1]:
            raise AttackError(f"the attack answered with the shape {tuple(guess.x.shape)}, not {expected}: this is a bug in it")
        return Guess(guess.x.detach().clamp(0, 1), guess.y.detach(), guess.loss.detach())


def compatibility(seen: Observation) -> tuple[object, ...]:
    """Observations with equal keys can be attacked together."""
    shapes = tuple((name, tuple(value.shape)) for name, value in seen.update.items())
    return seen.rule, seen.num_examples, seen.visibility, seen.knowledge.ledger, seen.knowledge.defense, shapes
