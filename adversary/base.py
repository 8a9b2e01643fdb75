"""What an attack is asked and what it answers. There is no way from here to the clients' data."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Self, cast, final

import torch
from torch import Tensor

from fl_app.core.local import LocalRule, Tensors
from fl_app.core.observation import Observation, Task, compatibility
from fl_app.core.places import there
from fl_app.core.seeds import generator
from fl_app.core.space import Space
from fl_app.core.spec import Checked, text_of
from fl_app.core.text import Tokens
from fl_app.store.files import checksum, load_tensors, save_tensors

LEAST_PUBLIC = 500
"""From how many public examples on an informed attacker learns from them (ours)."""


class AttackError(ValueError):
    """An attack that cannot be run on these observations; the message says why."""


class Other(NamedTuple):
    """What one member of an attack makes of a target: x (examples, *shape), y int64 (examples,)."""

    x: Tensor
    y: Tensor


class Guess(NamedTuple):
    """x: (targets, examples, *shape) in the task's space; y: int64 (targets, examples); loss: (targets,), the attack's own."""

    x: Tensor
    y: Tensor
    loss: Tensor
    others: Sequence[Mapping[str, Other]] = ()
    """Of an attack with several members, what each of them found, by target: only scoring may choose by truth."""
    remark: str = ""
    """What has to be known to repeat it beside the settings, such as that the clock ended a search."""
    control: Tensor | None = None
    """Of an attack whose answers look like examples whatever an update says: the same on updates that say nothing, like x."""

    @classmethod
    def stacked(cls, targets: "Sequence[tuple[Tensor, Tensor, Tensor] | Guess]") -> Self:
        """One answer about several targets, from (x, y, loss) of each."""
        x, y, loss = zip(*((one[0], one[1], one[2]) for one in targets), strict=True)
        return cls(torch.stack(x), torch.stack(y), torch.stack(loss))


class Belief(NamedTuple):
    """Scores of candidates, (targets, candidates), larger where the attack believes more: an inference, no reconstruction."""

    scores: Tensor


class Public(NamedTuple):
    """Examples that are nobody's secret: x (n, *shape), y int64 (n,)."""

    x: Tensor
    y: Tensor
    a: Tensor | None = None
    """Of images with attributes: the place of each one's value in every column, int64 (n, columns)."""


class Facts(NamedTuple):
    """What an informed attacker can count on: rounds captured per client, examples per update, what was granted."""

    rounds: int = 1
    examples: int = 1
    repeats: bool = False
    """That a client's examples are the same in all of its rounds."""
    evaluator: str = ""
    """The clients' evaluation network, by the name of its file."""
    public: int = 0
    """How many public examples of the same kind there are."""

    @property
    def enough(self) -> bool:
        """Whether there are enough public examples to learn from."""
        return self.public >= LEAST_PUBLIC


class Informed(NamedTuple):
    """An attack once it knows the defense, with what has to be granted for it; or why it cannot be."""

    name: str
    """What it is called, where a defense has several."""
    attack: "Attack | None"
    why: str
    """What it does about the defense."""
    grants: tuple[str, ...] = ("defense",)
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class Attack(Checked, ABC):
    """Settings of an attack; subclasses write `run`, for all targets at once."""

    question: ClassVar[str] = ""
    """What its Belief answers, by the name that scoring knows it by, such as "membership"; empty if it rebuilds examples."""
    trained: ClassVar[bool] = False
    """Whether it learns from public examples first, by `learn`."""
    needs_public: ClassVar[bool] = True
    """Whether there is no attack without public examples, if it learns from them."""
    public_wanted: ClassVar[int] = 0
    """How many public examples it can use beyond the usual ones; 0: those are enough."""
    at_weights: ClassVar[bool] = True
    """Whether what it learns depends on the weights of a round, on the clients' rule and on draws."""
    at_model: ClassVar[bool] = False
    """Whether it depends on the architecture and on draws, where it does not on the weights."""

    proof: ClassVar[float | None] = None
    """The loss up to which an answer is exact by the attack's own evidence, without the truth; None: it proves nothing."""
    of_text: ClassVar[bool] = False
    """Whether it takes text; all others take images, and some rows of a table."""
    different_weights: ClassVar[bool] = False
    """Whether it takes an aggregate of clients that were sent different weights."""

    @abstractmethod
    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess | Belief:
        """Answer for compatible observations, each with a generator of its own."""

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """What it learns from public examples at the weights and the rule of an observation; needs `trained`."""
        return {}

    def learns_from(self, space: Space) -> bool:
        """Whether it learns from public examples of such a space, if there are any."""
        return self.trained

    @property
    def learned(self) -> Tensors:
        """What `learn` gave; empty before `prepare`."""
        return cast(Tensors, self.__dict__.get("_learned", {}))

    @final
    def prepare(self, task: Task, seen: Observation, public: Public, seed: int, folder: Path) -> Self:
        """The attack with what it learns, which is kept in a folder by all that it was made of and not learned twice."""
        path = folder / f"{_made_of(self, task, seen, public, seed)}.safetensors"
        if not there(path):
            learned = self.learn(task, seen, public, generator(seed, "learn", seen.server_round))
            path.parent.mkdir(parents=True, exist_ok=True)
            save_tensors(path, learned, {"attack": text_of(self, {})})
        device = next(iter(seen.params.values())).device
        return self.taught({name: value.to(device) for name, value in load_tensors(path)[0].items()})

    @final
    def taught(self, learned: Tensors) -> Self:
        """The attack with what `learn` gave."""
        prepared = copy(self)
        prepared.__dict__["_learned"] = learned
        return prepared

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """What the attack becomes once it knows the spec of the defense, the strongest first; empty if nothing changes."""
        return []

    @property
    def by_client(self) -> bool:
        """Whether the rounds of a client have to be attacked in one call."""
        return False

    def cost(self, examples: int, rule: LocalRule) -> float:
        """About how many gradients of one example it takes per target."""
        return float(examples * rule.steps)

    def shortened(self, iterations: int) -> "Attack | None":
        """The same attack with so many iterations, to time it; None if it does not iterate."""
        return None

    @final
    def fits(self, space: Space) -> None:
        """Refuse examples that the attack cannot be about."""
        if isinstance(space, Tokens) and not self.of_text:
            raise AttackError(f"{type(self).__name__} is no attack on text, as these examples are: see thorns list attacks")

    @final
    def __call__(self, seen: Sequence[Observation], task: Task, seed: int) -> Guess | Belief:
        """Check the observations, run the attack, check the answer.

        The draws of a target depend on the seed, its round and its client alone: not on what is attacked beside it.
        """
        if not seen:
            raise AttackError("there is nothing to attack: no observation was given")
        self.fits(task.space)
        first = compatibility(seen[0])
        for other in seen[1:]:
            if compatibility(other) != first:
                raise AttackError("these observations differ in rule, number of examples or parameters: attack them in groups")
        if not self.different_weights and any(one.sent for one in seen):
            raise AttackError("clients were sent different weights, and an aggregate over these explains no example")
        answer = self.run(seen, task, [generator(seed, one.server_round, one.client) for one in seen])
        return _checked_belief(answer, seen) if isinstance(answer, Belief) else _checked_guess(answer, seen, task)


def _made_of(attack: Attack, task: Task, seen: Observation, public: Public, seed: int) -> str:
    """A hash of the attack's settings, the public examples and, as far as they matter, the weights, the rule, the network."""
    at = (seen.rule, seen.num_examples, seen.knowledge.defense) if attack.at_weights else ()
    network = (repr(task.model), [(name, value.shape) for name, value in seen.params.items()]) if attack.at_model else ()
    made_of = repr((text_of(attack, {}), seed if attack.at_weights or attack.at_model else 0, at, *network))
    weights = {f"weights {name}": value for name, value in seen.params.items()} if attack.at_weights else {}
    given = {name: value for name, value in public._asdict().items() if value is not None}
    return checksum(weights | given, made_of)[:32]


def _checked_guess(guess: Guess, seen: Sequence[Observation], task: Task) -> Guess:
    expected = (len(seen), seen[0].num_examples, *task.space.shape)
    if guess.x.shape != expected or guess.y.shape != expected[:2] or guess.loss.shape != expected[:1]:
        raise AttackError(f"the attack answered with the shape {tuple(guess.x.shape)}, not {expected}: this is a bug in it")
    others = [{name: _checked_other(name, one, expected[1:], task) for name, one in each.items()} for each in guess.others]
    if len(others) not in (0, len(seen)):
        raise AttackError(f"the attack handed on others for {len(others)} of {len(seen)} targets: this is a bug in it")
    control = None if guess.control is None else task.space.clamp(guess.control.detach())
    if control is not None and control.shape != expected:
        raise AttackError(f"the attack's control has the shape {tuple(control.shape)}, not {expected}: this is a bug in it")
    return Guess(task.space.clamp(guess.x.detach()), guess.y, guess.loss.detach(), others, guess.remark, control)


def _checked_other(name: str, other: Other, expected: tuple[int, ...], task: Task) -> Other:
    if other.x.shape != expected or other.y.shape != expected[:1]:
        raise AttackError(f"{name} answered with the shape {tuple(other.x.shape)}, not {expected}: this is a bug in it")
    return Other(task.space.clamp(other.x.detach()), other.y)


def _checked_belief(belief: Belief, seen: Sequence[Observation]) -> Belief:
    scores = belief.scores.detach()
    if scores.ndim != 2 or len(scores) != len(seen) or not bool(scores.isfinite().all()):
        raise AttackError(f"the attack's scores, {tuple(scores.shape)}, are not finite numbers per target and candidate")
    return Belief(scores)
