"""The classes that a client has, over its rounds: counted in each update, and added up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from adversary.base import Attack, Belief
from adversary.labels import LabelRule, infer
from fl_app.core.observation import Observation, Task


@dataclass(frozen=True, kw_only=True)
class LabelDistribution(Attack):
    """The share of each class among a client's examples, from what a label rule counts in all of its rounds."""

    question: ClassVar[str] = "labels"
    of_text: ClassVar[bool] = True
    labels: LabelRule = "count"

    @property
    def by_client(self) -> bool:
        """All rounds of a client are needed."""
        return True

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Belief:
        """Shares (targets, classes), the same in all rounds of a client."""
        counts: dict[int, torch.Tensor] = {}
        for one, stream in zip(seen, streams, strict=True):
            found = infer(self.labels, one, task, stream).cpu().bincount(minlength=task.num_classes)
            counts[one.client] = counts.get(one.client, torch.zeros_like(found)) + found
        return Belief(torch.stack([counts[one.client] / counts[one.client].sum() for one in seen]))
