"""What a server sees of a client, what an attacker was told beyond that, and the public facts of a model."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor, nn

from fl_app.core.local import LocalRule, Tensors
from fl_app.core.space import Space

Visibility = Literal["individual", "aggregate"]
Key = tuple[int, int]
"""(round, client) of a target; client -1 is the aggregate."""


class Candidates(NamedTuple):
    """Examples that an attack is asked about, x (n, *shape), y int64 (n,), in an order that tells nothing of the answer."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What was granted to the attacker beyond the protocol; printed beside every number."""

    labels: Tensor | None = None
    """The true classes of the examples, int64 (examples,), in no particular order."""
    lengths: Tensor | None = None
    """Of text: how many tokens each example has, [CLS] and [SEP] included, int64 (examples,); in the order of `labels`."""
    defense: str | None = None
    """The spec of the clients' defense."""
    statistics: Tensors = field(default_factory=dict)
    """BatchNorm statistics of the client's batch: layer name -> (2, channels), means and variances."""

    order: Tensor | None = None
    """Which examples each local step used, positions (steps, batch size): what a client that shuffles keeps to itself."""
    repeats: bool = False
    """That the client used the same examples in all of its rounds that were captured."""
    evaluator: bool = False
    """The client's own evaluation network; the attack's spec names its file."""
    public: bool = False
    """Public examples of the same kind, which the attack learned from."""
    candidates: Candidates | None = None
    """Examples some of which the client used: which, is what an inference attack is asked."""

    chosen: tuple[str, ...] = ()
    """What a malicious server made up to see more: the "weights", the "architecture"."""

    @property
    def ledger(self) -> tuple[str, ...]:
        """The names of what was granted, for people."""
        granted = {
            "labels": self.labels is not None,
            "lengths": self.lengths is not None,
            "defense": self.defense is not None,
            "bn statistics": bool(self.statistics),
            "batch order": self.order is not None,
            "repeated examples": self.repeats,
            "evaluation network": self.evaluator,
            "public examples": self.public,
            "candidates": self.candidates is not None,
        }
        return *(name for name, given in granted.items() if given), *(f"the server chose the {one}" for one in self.chosen)


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
    sent: dict[int, Tensors] = field(default_factory=dict)
    """Of an aggregate of clients that were sent different weights: client -> what differs from `params`."""
    knowledge: Knowledge = field(default_factory=Knowledge)


@dataclass(frozen=True)
class Task:
    """The public facts: the architecture, what an example is, the number of classes."""

    model: nn.Module
    space: Space
    num_classes: int


def compatibility(seen: Observation) -> tuple[object, ...]:
    """Observations with equal keys can be attacked together."""
    shapes = tuple((name, tuple(value.shape)) for name, value in seen.update.items())
    told = seen.knowledge
    asked = 0 if told.candidates is None else len(told.candidates.y)
    return seen.rule, seen.num_examples, seen.visibility, told.ledger, told.defense, asked, shapes
