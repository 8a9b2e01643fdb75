"""Gradient Dropout: each entry is either the gradient over p or a decoy, and both laws are known."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import Facts
from adversary.informed.variant import Variant, averaged, with_labels, with_objective, with_tv
from adversary.objectives import Cosine, Objective, cosine
from adversary.search.matching import Matching
from client_defenses.gradient_dropout import GradientDropout
from fl_app.core.local import Tensors

PRIOR = 0.3
"""Total variation beside the likelihood (ours, chosen on 8 MNIST images)."""


@dataclass(frozen=True, kw_only=True)
class Mixture(Objective):
    """-log of p N(sent; g / p, tau²) + (1 - p) N(sent; 0, sigma²), the mean over entries; g is the reconstruction's gradient.

    A wide tau lets every entry pull at first, a narrow one decides which of them are decoys, so tau falls by stages; before
    that the plain cosine finds the neighbourhood. sigma = 0 stands for decoys as wide as each tensor's gradient, whose
    variance follows from what was sent: E sent² = g² / p + (1 - p) sigma².
    """

    p: Annotated[float, Field(gt=0, le=1)]
    sigma: Annotated[float, Field(ge=0)] = 0.0
    TAUS: ClassVar[tuple[float, ...]] = (1.0, 0.3, 0.1, 0.03, 0.01)
    stages: ClassVar[int] = 1 + len(TAUS)

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The negative log-likelihood, after a stage of the cosine."""
        stage = min(round(progress * self.stages), self.stages - 1)
        if stage == 0:
            return cosine(dummy, seen)
        parts = [self._likelihood(dummy[name], value, self.TAUS[stage - 1]) for name, value in seen.items()]
        return torch.stack(parts).sum() / sum(value.numel() for value in seen.values())

    def residuals(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The gaps of kept entries, by the probability that they were kept: what expectation-maximisation minimises."""
        stage = min(round(progress * self.stages), self.stages - 1)
        if stage == 0:
            return Cosine().residuals(dummy, seen, progress)
        share = (2 * sum(value.numel() for value in seen.values())) ** -0.5
        found = []
        for name, value in seen.items():
            gap, kept, decoy = self._laws(dummy[name], value, self.TAUS[stage - 1])
            found.append(share * gap * (kept - torch.logaddexp(kept, decoy)).detach().exp().sqrt())
        return torch.cat([part.flatten() for part in found])

    def _likelihood(self, dummy: Tensor, seen: Tensor, width: float) -> Tensor:
        """The sum over one tensor, less a constant."""
        _, kept, decoy = self._laws(dummy, seen, width)
        return -torch.logaddexp(kept, decoy).sum()

    def _laws(self, dummy: Tensor, seen: Tensor, width: float) -> tuple[Tensor, Tensor, Tensor]:
        """(gap over tau, log-probability as a kept entry, and as a decoy) of each entry."""
        matched = (seen.square().mean() / (1 / self.p + 1 - self.p)).sqrt() + 1e-12
        sigma = seen.new_tensor(self.sigma) if self.sigma else matched
        tau = width * sigma
        gap = (seen - dummy / self.p) / tau
        kept = math.log(self.p) - gap.square() / 2 - tau.log()
        if self.p == 1:
            return gap, kept, torch.full_like(kept, -torch.inf)
        return gap, kept, math.log(1 - self.p) - (seen / sigma).square() / 2 - sigma.log()


def variants(defense: GradientDropout, facts: Facts) -> list[Variant]:
    """Weighs for each entry whether it is the gradient or a decoy; rounds on the same examples are averaged."""
    sigma = 0.0 if defense.sigma == "match" else defense.sigma

    def change(attack: Matching) -> Matching:
        attack = with_labels(with_objective(attack, Mixture(p=defense.p, sigma=sigma)), "count_rows")
        return averaged(with_tv(attack, least=PRIOR, most=PRIOR), facts)

    why = "weighs for each entry whether it is the gradient or a decoy; rounds on the same examples are averaged"
    return [Variant(why, change)]
