"""The linear-Gaussian denoiser (ours): clean updates are draws from a Gaussian with few directions, so the mean is closed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import Public
from adversary.denoise.base import Denoiser
from adversary.denoise.clean import TINY, as_updates, clean_rows, rows_seen
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task

ROUNDS = 10
"""Rounds of expectation-maximisation for entries that may be decoys (ours)."""


@dataclass(frozen=True, kw_only=True)
class LinearGaussian(Denoiser):
    """g = mean + U c + rest with c in N(0, diag(lambda)): the mean given what was sent (Wiener's filter, or EM for decoys).

    Additive noise shrinks each direction by lambda / (lambda + noise²) and falls by directions over entries. An entry that is
    sent as it is, or times a known factor, stays; one that was zeroed or may be a decoy is weighed and filled in. Without
    any setting the noise is estimated from what no direction explains.
    """

    rank: Annotated[int, Field(ge=1, le=4096)] = 500
    """Directions: the leading principal components of updates of public examples."""
    draws: Annotated[int, Field(ge=100, le=10**5)] = 2000
    """Updates of public examples that it learns from."""
    noise: Annotated[float, Field(ge=0)] = 0.0
    """The standard deviation of noise on every entry."""
    relative: Annotated[float, Field(ge=0)] = 0.0
    """The same in units of the root mean square of each tensor's clean entries."""
    clip: Annotated[float, Field(ge=0)] = 0.0
    """The norm to which a client clips its update before the noise; 0: it does not."""
    kept: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The probability that an entry was kept and divided by it, where the others are decoys."""
    decoy: Annotated[float, Field(ge=0)] = 0.0
    """The standard deviation of decoys; 0: that of each tensor."""
    zeros: bool = False
    """Whether zeros stand for entries that were left out."""

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """Mean (entries,), directions (entries, rank) and their variance; the mean square of what they leave of each tensor."""
        rows = clean_rows(task, seen, public, self.draws, self.clip, rng)
        mean = rows.mean(0)
        centred = rows - mean
        values, vectors = torch.linalg.eigh((centred @ centred.T).double())
        rank = min(self.rank, len(rows) - 1, rows.shape[1])
        values, vectors = values[-rank:].flip(0), vectors[:, -rank:].flip(1)
        known = values > values[0].clamp_min(TINY) * 1e-9  # beyond that only rounding is left
        values, vectors = values[known], vectors[:, known]
        directions = (centred.T @ (vectors / values.sqrt()).to(centred)).contiguous()
        rest = (centred - (centred @ directions) @ directions.T).square().mean(0)
        rest = torch.cat([part.mean().expand(len(part)) for part in rest.split(_sizes(seen.update))])
        return {"mean": mean, "directions": directions, "variance": (values / len(rows)).to(centred), "rest": rest}

    def cleaned(self, learned: Tensors, seen: Sequence[Observation], streams: Sequence[torch.Generator]) -> list[Tensors]:
        """The posterior means, all targets at once; it draws nothing."""
        sent = rows_seen(seen).to(learned["mean"])
        if self.zeros:
            found = self._filled(learned, sent, (sent != 0).to(sent))
        elif self.kept < 1:
            found = self._sifted(learned, sent, _sizes(seen[0].update))
        else:
            found = self._shrunk(learned, sent, _sizes(seen[0].update))
        return as_updates(found, seen[0].update)

    def _shrunk(self, learned: Tensors, sent: Tensor, sizes: list[int]) -> Tensor:
        """Wiener's filter."""
        mean, directions, variance = learned["mean"], learned["directions"], learned["variance"]
        gap = sent - mean
        if self.relative:  # of unequal noise on the entries, each equation counts by its own
            scale = torch.cat([part.square().mean(1, keepdim=True).expand_as(part) for part in sent.split(sizes, 1)], 1)
            noise = self.relative**2 * scale / (1 + self.relative**2)
            return mean + _solved(directions, variance, 1 / (noise + learned["rest"] + TINY), gap) @ directions.T
        inside = gap @ directions
        if self.noise:
            noise = torch.full((len(sent), 1), self.noise**2).to(sent)
        else:
            outside = (gap.square().sum(1) - inside.square().sum(1)).clamp_min(0)
            left = (outside / max(1, sent.shape[1] - len(variance)) - learned["rest"].mean()).clamp_min(0)
            noise = left[:, None]
        return mean + (inside * (variance / (variance + noise + TINY))) @ directions.T

    def _filled(self, learned: Tensors, sent: Tensor, known: Tensor) -> Tensor:
        """What was sent, and what it says of the entries that were not."""
        weight = known / (learned["rest"] + TINY + 1e-6 * learned["variance"].sum() / sent.shape[1])
        found = _solved(learned["directions"], learned["variance"], weight, sent - learned["mean"])
        return torch.where(known > 0, sent, learned["mean"] + found @ learned["directions"].T)

    def _sifted(self, learned: Tensors, sent: Tensor, sizes: list[int]) -> Tensor:
        """EM: the probability that each entry was kept, given what the others say of it; then the mean by that weight."""
        mean, directions, p = learned["mean"], learned["directions"], self.kept
        value = p * sent
        spread = torch.cat([part.square().mean(1, keepdim=True).expand_as(part) for part in sent.split(sizes, 1)], 1)
        # Where decoys are as wide as the clean entries, what was sent has (1 / p + 1 - p) times their mean square.
        decoy = torch.full_like(sent, self.decoy**2) if self.decoy else spread / (1 / p + 1 - p)
        decoy = p**2 * decoy + TINY
        kept = torch.full_like(sent, p)
        found = mean.expand_as(sent)
        # At first an entry is as far off as public updates are from their mean.
        left = learned["rest"] + (directions.square() * learned["variance"]).sum(1)
        left = left.expand_as(sent)
        floor = learned["rest"].mean() * 1e-3 + TINY
        for _ in range(ROUNDS):
            gap = value - found
            own = torch.log(torch.tensor(p)) - gap.square() / left / 2 - left.log() / 2
            other = torch.log(torch.tensor(1 - p)) - value.square() / decoy / 2 - decoy.log() / 2
            kept = torch.sigmoid(own - other)
            weight = kept / left
            found = mean + _solved(directions, learned["variance"], weight, value - mean) @ directions.T
            squares, share = (kept * (value - found).square()).split(sizes, 1), kept.split(sizes, 1)
            left = torch.cat(
                [
                    (own.sum(1, keepdim=True) / part.sum(1, keepdim=True).clamp_min(1e-3)).expand_as(own)
                    for own, part in zip(squares, share, strict=True)
                ],
                1,
            ).clamp_min(floor)
        return kept * value + (1 - kept) * found


def _solved(directions: Tensor, variance: Tensor, weight: Tensor, gap: Tensor) -> Tensor:
    """argmin_c sum_i w_i (gap_i - U_i c)² + c' diag(1 / variance) c of each target: (targets, rank)."""
    inner = torch.stack([(directions * own[:, None]).T @ directions for own in weight])  # a target's matrix fits the cache
    right = (weight * gap) @ directions
    return torch.as_tensor(torch.linalg.solve(inner + torch.diag(1 / (variance + TINY)), right))


def _sizes(update: Tensors) -> list[int]:
    return [value.numel() for value in update.values()]
