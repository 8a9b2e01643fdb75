"""What an attack sees, what it is asked, and what it answers. There is no way from here to the clients' data."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from fl_app.core.observation import Observation, Task, compatibility
from fl_app.core.spec import Checked


class AttackError(ValueError):
    """An attack that cannot be run on these observations; the message says why."""


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
