"""The read-out of LOKI's block (Zhao et al., IEEE S&P 2024): images by client and bin, also from an aggregate."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from adversary.base import Attack, AttackError, Guess
from adversary.exact.found import Found, guess_of
from adversary.search.optimizers import Rate
from fl_app.core.observation import Observation, Task
from fl_app.models.fronts import Loki

CONV, WEIGHT, BIAS = "front.conv.weight", "front.bins.weight", "front.bins.bias"


@dataclass(frozen=True, kw_only=True)
class LokiReadout(Attack):
    """For a server=loki: each image that is alone in its client's bin of brightness.

    The columns of a client's channels have moved along its images alone. How far, several clients decide together: so the
    scale of an image is that which puts its brightness into the middle of its bin, unless one client's gradient is seen
    by itself.
    """

    different_weights: ClassVar[bool] = True
    least: Rate = 1e-3
    """A bin is empty if its columns moved by less than this share of those that moved most."""

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Read off each target by itself."""
        if not isinstance(getattr(task.model, "front", None), Loki) or not bool(seen[0].params[CONV].any()):
            raise AttackError("the model has no block of LOKI with crafted weights: it is for runs with server=loki")
        return guess_of([self._read(one, task) for one in seen], seen, task)

    def _read(self, seen: Observation, task: Task) -> Found:
        params, channels, pixels = seen.params, task.space.shape[0], prod(task.space.shape)
        kernels = [params[CONV], *(own[CONV] for own in seen.sent.values() if CONV in own)]
        scale = max(one.abs().max().item() for one in kernels)
        clients = sorted({int(place) // channels for one in kernels for place in one.flatten(1).any(1).nonzero()})
        slope = params[WEIGHT][:, 0].double() * scale * pixels
        middle = (0.5 - params[BIAS].double()) / slope
        moved = seen.update[WEIGHT].view(len(slope), -1, pixels)[:, clients].transpose(0, 1)  # (clients, bins, pixels)
        mean = moved.mean(2, dtype=torch.float64)
        hit = self._hits(mean, seen.num_examples)
        size = middle.expand_as(mean)[hit] / mean[hit]
        if len(clients) == 1 and seen.rule.kind == "gradient":  # a change of the bias would be lost beside the large bias
            size = 1 / (scale * seen.update[BIAS].double().expand_as(mean)[hit])
        x = moved[hit].double() * size[:, None]
        return Found(x.view(-1, *task.space.shape), mean[hit].abs())

    def _hits(self, mean: Tensor, most: int) -> Tensor:
        """Which bins of which clients something is in: (clients, bins)."""
        size = mean.abs()
        least = self.least * size.max()
        if size.numel() > most:
            least = torch.maximum(least, size.flatten().topk(most).values[-1])
        return (size >= least) & (size > 0)
