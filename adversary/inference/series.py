"""Confidence series over the rounds (CS-MIA, Gu et al. 2022): members are learned sooner and better than others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from adversary.base import Belief, Public
from adversary.inference.base import Membership, after, asked_of, confidences
from fl_app.core.local import Tensors
from fl_app.core.observation import Candidates, Observation, Task


@dataclass(frozen=True, kw_only=True)
class Series(Membership):
    """How far the confidence in a candidate lies above that in public examples of its class, on average over all rounds.

    The paper trains a classifier of series on members that the attacker knows; ours knows none, and measures each round against
    the public examples instead. Where clients take local steps, their networks after these are part of the series.
    """

    trained: ClassVar[bool] = True
    at_weights: ClassVar[bool] = False

    @property
    def by_client(self) -> bool:
        """All rounds of a client are one series."""
        return True

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """The public examples themselves: the weights that they are measured at come later."""
        return {"x": public.x, "y": public.y}

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Belief:
        """Score the candidates of each target by all rounds of its client."""
        rounds = [[other for other in seen if other.client == one.client] for one in seen]
        return Belief(torch.stack([self._over(own, task, asked_of(one)) for one, own in zip(seen, rounds, strict=True)]))

    def believe(self, seen: Observation, task: Task, asked: Candidates) -> Tensor:
        """The series of one round, (candidates,)."""
        return self._over([seen], task, asked)

    def _over(self, rounds: Sequence[Observation], task: Task, asked: Candidates) -> Tensor:
        public = Candidates(self.learned["x"], self.learned["y"])
        found = []
        for one in rounds:
            for params in [one.params, *([after(one)] if one.rule.kind == "delta" else [])]:
                known = confidences(task, params, public)
                means = torch.zeros(task.num_classes, device=known.device).index_add(0, public.y, known)
                numbers = torch.bincount(public.y, minlength=task.num_classes)
                means = torch.where(numbers > 0, means / numbers.clamp_min(1), known.mean())
                spread = (known - means[public.y]).std().clamp_min(1e-6)
                found.append((confidences(task, params, asked) - means[asked.y]) / spread)
        return torch.stack(found).mean(0)
