"""How an attacker thinks an update came about, a piece of `matching`: the identity by default, more in `informed/`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from adversary.base import Guess
from fl_app.core.local import Gradient, LocalRule, Tensors
from fl_app.core.observation import Observation, Task
from fl_app.core.spec import Checked, Registry


class Local(NamedTuple):
    """What an update is imagined from: all that `local_update` takes, and the update that was observed."""

    model: nn.Module
    params: Tensors
    x: Tensor
    y: Tensor
    rule: LocalRule
    gradient: Gradient
    observed: Tensors


@dataclass(frozen=True, kw_only=True)
class Observer(Checked):
    """Changes to the client's rule that an attacker knows of; every hook is the identity, override what you know."""

    by_client: ClassVar[bool] = False
    """Whether `clean` compares the rounds of a client, which then have to be attacked in one call."""
    unrolls: ClassVar[bool] = True
    """Whether an update goes through all local steps, which is what it costs."""

    def model(self, model: nn.Module, seen: Observation, task: Task) -> nn.Module:
        """The model that the client differentiated."""
        return model

    def draw(self, seen: Observation, task: Task) -> Tensors:
        """Where the search for what is not known of the defense's own draws starts, for one target: masks, say."""
        return {}

    def project(self, unknown: Tensors) -> Tensors:
        """The nearest allowed values of what is not known, each (targets, seeds, ...), after each step."""
        return unknown

    def weights(self, params: Tensors, unknown: Tensors, progress: float) -> Tensors:
        """The weights at which the client took its gradient; differentiable, under vmap."""
        return params

    def update(self, local: Local, unknown: Tensors) -> Tensors | None:
        """The update of a reconstruction, if not by the client's rule (None); differentiable, under vmap."""
        return None

    def sent(self, update: Tensors, unknown: Tensors) -> Tensors:
        """What the client sent of an update; entries of other names go to the objective, too."""
        return update

    def gradient(self, gradient: Gradient, seen: Observation) -> Gradient:
        """How the client took its gradient, given how it would be taken otherwise; differentiable, under vmap."""
        return gradient

    def clean(self, guess: Guess, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """The reconstructions of all observations without what the defense added."""
        return guess


def registered() -> Registry[Observer]:
    """All observers: those that know a defense live with the informed attackers."""
    from adversary.informed import pieces
    from adversary.search.assumed import Assumed
    from adversary.search.surrogate import Surrogate

    return {"assumed": Assumed, "surrogate": Surrogate, **pieces.OBSERVERS}
