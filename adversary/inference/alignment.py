"""Gradient alignment: the update points where a member's gradient points."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from adversary.base import Facts, Informed
from adversary.inference.base import Membership, gradients, sent
from adversary.inference.likelihood_ratio import knowing
from fl_app.core.observation import Candidates, Observation, Task


@dataclass(frozen=True, kw_only=True)
class Alignment(Membership):
    """The cosine of a candidate's gradient with the update: 1 of a batch of one, about 1 / sqrt(batch) of larger ones."""

    def believe(self, seen: Observation, task: Task, asked: Candidates) -> Tensor:
        """Cosines, (candidates,); 0 of an update of zeros."""
        update = sent(seen)
        return torch.cat([F.cosine_similarity(part, update[None]) for part in gradients(task, seen, asked)])

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """The likelihood ratio, where the defense adds noise of a known law."""
        return knowing(defense, facts)
