"""The interface of a denoiser: what a defense added is taken off an update before anybody looks for examples in it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from adversary.base import Public
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task
from fl_app.core.spec import Checked


@dataclass(frozen=True, kw_only=True)
class Denoiser(Checked, ABC):
    """Settings of a denoiser, a piece of `matching`; it learns from updates of public examples at the weights of a round."""

    @abstractmethod
    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """What clean updates look like."""

    @abstractmethod
    def cleaned(self, learned: Tensors, seen: Sequence[Observation], streams: Sequence[torch.Generator]) -> list[Tensors]:
        """The estimates of the clean updates behind observations; a target's draws come from its own stream alone."""
