"""The most powerful test of one candidate under known noise (Neyman and Pearson 1933)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import Facts, Informed
from adversary.inference.base import Membership, gradients, sent
from fl_app.core.observation import Candidates, Observation, Task

TINY = 1e-12
"""The least variance of an entry of the sum, in units of its mean square: without noise and others, all else is impossible."""


@dataclass(frozen=True, kw_only=True)
class LikelihoodRatio(Membership):
    """The log-likelihood ratio of "the candidate is one of the batch" to "another example is in its place".

    The sum over the batch is Gaussian: the noise, and the other examples, with mean and variance of the candidates.
    Of a batch of one with noise it is the optimal test; of larger ones it takes the others for noise of equal size everywhere.
    """

    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Standard deviation of the noise on an entry of the sum over the batch."""
    clip: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """The norm to which each example's gradient is clipped; 0: it is not."""

    def believe(self, seen: Observation, task: Task, asked: Candidates) -> Tensor:
        """Log-likelihood ratios, (candidates,)."""
        batch, total = seen.num_examples, sent(seen) * seen.num_examples
        mean, square = torch.zeros_like(total), torch.zeros((), device=total.device)
        for part in gradients(task, seen, asked):
            clipped = self._clipped(part)
            mean += clipped.sum(0) / len(asked.y)
            square += clipped.square().sum() / len(asked.y)
        variance = (square - mean.square().sum()).clamp_min(0) / len(mean)
        spread = self.noise**2 + (batch - 1) * variance + TINY * total.square().mean() + torch.finfo(total.dtype).tiny
        rest, found = total - batch * mean, []
        for part in gradients(task, seen, asked):
            instead = self._clipped(part) - mean
            found.append((instead @ rest - instead.square().sum(1) / 2) / spread)
        return torch.cat(found)

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """The same with the law of the defense's noise and its clipping."""
        return knowing(defense, facts)

    def _clipped(self, rows: Tensor) -> Tensor:
        if not self.clip:
            return rows
        factor: Tensor = self.clip / rows.norm(dim=1, keepdim=True).clamp_min(self.clip)
        return rows * factor


def knowing(defense: str, facts: Facts) -> list[Informed]:
    """The test under the noise of a defense; empty where it adds none of a known size."""
    from adversary.informed.membership import noise_of  # only informed attackers know defenses

    law = noise_of(defense, facts.examples)
    if law is None:
        return []
    why = "the likelihood ratio under the noise's law, after the same clipping"
    return [Informed("likelihood ratio", LikelihoodRatio(noise=law.noise, clip=law.clip), why)]
