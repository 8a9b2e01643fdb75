"""How an attacker thinks an update came about, a piece of `matching`: the identity by default, more in `informed/`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from adversary.base import Guess
from fl_app.core.local import Gradient, Tensors
from fl_app.core.observation import Observation, Task
from fl_app.core.spec import Checked, Registry


@dataclass(frozen=True, kw_only=True)
class Observer(Checked):
    """Changes to the client's rule that an attacker knows of; every hook is the identity, override what you know."""

    by_client: ClassVar[bool] = False
    """Whether `clean` compares the rounds of a client, which then have to be attacked in one call."""

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
    """All observers: each knows a defense, so they live with the informed attackers."""
    from adversary.informed import pieces

    return pieces.OBSERVERS
