"""What membership attacks share: the question, the candidates, and what each of them would have contributed to an update."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from adversary.base import Attack, AttackError, Belief
from fl_app.core.local import LocalRule, Step, Tensors
from fl_app.core.observation import Candidates, Observation, Task

CHUNK = 2**24
"""Numbers that the gradients of candidates at once may hold: 64 MB of float32."""


@dataclass(frozen=True, kw_only=True)
class Membership(Attack):
    """Asks of each candidate whether the client used it in the round; subclasses write `believe`."""

    question: ClassVar[str] = "membership"
    of_text: ClassVar[bool] = True

    @abstractmethod
    def believe(self, seen: Observation, task: Task, asked: Candidates) -> Tensor:
        """A score of each candidate, (candidates,), larger where it rather is a member."""

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Belief:
        """Score the candidates of each target by themselves."""
        return Belief(torch.stack([self.believe(one, task, asked_of(one)) for one in seen]))

    def cost(self, examples: int, rule: LocalRule) -> float:
        """One gradient of each candidate, of which there are a hundred and the target's own unless somebody says otherwise."""
        return float(100 + examples)


def asked_of(seen: Observation) -> Candidates:
    """The candidates of a target; AttackError if there are none."""
    if seen.knowledge.candidates is None:
        raise AttackError("there are no candidates to ask a membership attack about: --candidates FILE names some")
    return seen.knowledge.candidates


def flat(tensors: Tensors) -> Tensor:
    """All values as one vector, (size,), in the order of the names."""
    return torch.cat([value.flatten() for value in tensors.values()])


def gradients(task: Task, seen: Observation, asked: Candidates) -> Iterator[Tensor]:
    """The gradient of each candidate at the weights that were sent, as vectors (some, size), a part of them at a time."""
    size = sum(value.numel() for value in seen.params.values())
    some = max(1, CHUNK // size)
    for x, y in zip(asked.x.split(some), asked.y.split(some), strict=True):
        found = Step(seen.params, task.model, x, y).per_example_gradients()
        yield torch.cat([found[name].flatten(1) for name in seen.update], 1).detach()


def sent(seen: Observation) -> Tensor:
    """What was sent as the gradient that it is, or that local steps come to if they are small, as a vector (size,)."""
    if seen.rule.kind == "gradient":
        return flat(seen.update)
    return -flat(seen.update) / (seen.rule.lr * seen.rule.gradients)


def after(seen: Observation) -> Tensors:
    """The client's own weights after its local steps; AttackError if it sent a gradient."""
    if seen.rule.kind != "delta":
        raise AttackError("a client that sends a gradient has no network of its own: this needs update='delta'")
    return {name: value + seen.update[name] for name, value in seen.params.items()}


def confidences(task: Task, params: Tensors, asked: Candidates) -> Tensor:
    """log(p / (1 - p)) of each candidate's class, (candidates,): about normal over networks (Carlini et al. 2022)."""
    outputs = functional_call(task.model, params, (asked.x,), tie_weights=False).detach()
    own = outputs.gather(1, asked.y[:, None])[:, 0]
    others = outputs.masked_fill(F.one_hot(asked.y, outputs.shape[1]).bool(), -torch.inf)
    found: Tensor = own - others.logsumexp(1)
    return found
