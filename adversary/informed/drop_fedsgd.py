"""Drop-FedSGD: which weights were dropped is searched for together with the image, as a kept entry is exact."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import Facts
from adversary.informed.variant import Variant, averaged, with_labels, with_objective, with_observer, with_tv
from adversary.labels import last_weight
from adversary.objectives import Objective, robust
from adversary.search.matching import Matching
from adversary.search.observers import Observer
from client_defenses.drop_fedsgd import DropFedSGD
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task

PRIOR = 0.3
"""Total variation beside the likelihood (ours, chosen on 4 MNIST images)."""
DROPPED = "dropped/"
SURE, TINY = 8.0, 1e-6


@dataclass(frozen=True, kw_only=True)
class Dropped(Observer):
    """The probability that each weight was dropped, as the logit of a relaxed mask; the gradient is taken without them."""

    p: Annotated[float, Field(gt=0, lt=1)]

    def draw(self, seen: Observation, task: Task) -> Tensors:
        """The prior everywhere, but for the last layer of a single example, whose gradient is a product of two vectors."""
        start = math.log(self.p / (1 - self.p))
        logits = {name: torch.full_like(value, start) for name, value in seen.update.items()}
        name = last_weight(seen.update, task.num_classes)
        if seen.num_examples == 1:
            logits[name] = torch.where(off_rank_one(seen.update[name]), SURE, -SURE)
        return logits

    def project(self, unknown: Tensors) -> Tensors:
        """Logits whose sigmoid still has a gradient."""
        return {name: value.clamp(-SURE, SURE) for name, value in unknown.items()}

    def weights(self, params: Tensors, unknown: Tensors, progress: float) -> Tensors:
        """The weights less the dropped ones; the masks stay as they are until the image is roughly right."""
        masks = {name: value if progress else value.detach() for name, value in unknown.items()}
        return {name: value * (1 - masks[name].sigmoid()) for name, value in params.items()}

    def sent(self, update: Tensors, unknown: Tensors) -> Tensors:
        """The gradient, and beside it the masks for the objective."""
        return {**update, **{DROPPED + name: value for name, value in unknown.items()}}


@dataclass(frozen=True, kw_only=True)
class KeptOrDropped(Objective):
    """-log of (1 - m) N(sent; k g, tau²) + m N(sent; 0, sigma²) with the mask's own prior; m the mask, k the clipping.

    As in the mixture of Gradient Dropout tau falls by stages, after a stage of the robust cosine.
    """

    p: Annotated[float, Field(gt=0, lt=1)]
    sigma: Annotated[float, Field(gt=0)]
    """Standard deviation of the noise in the place of dropped entries."""
    clip: Annotated[float, Field(gt=0)] = 1.0
    TAUS: ClassVar[tuple[float, ...]] = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)
    stages: ClassVar[int] = 1 + len(TAUS)

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The negative log-likelihood, the mean over entries."""
        stage = min(round(progress * self.stages), self.stages - 1)
        masks = {name: dummy[DROPPED + name].sigmoid() for name in seen}
        kept = {name: dummy[name] * (1 - masks[name]) for name in seen}
        if stage == 0:
            return 10 * robust(kept, seen, 2.0)  # a prior that suits a likelihood is ten times too strong for a cosine
        size = torch.stack([value.square().sum() for value in kept.values()]).sum().sqrt()
        factor, tau = self.clip / size.clamp_min(self.clip), self.TAUS[stage - 1] * self.sigma
        total = seen[next(iter(seen))].new_zeros(())
        for name, value in seen.items():
            exact = (1 - masks[name] + TINY).log() - ((value - factor * dummy[name]) / tau).square() / 2 - math.log(tau)
            noise = (masks[name] + TINY).log() - (value / self.sigma).square() / 2 - math.log(self.sigma)
            prior = masks[name] * math.log(self.p) + (1 - masks[name]) * math.log(1 - self.p)
            total = total - (torch.logaddexp(exact, noise) + prior).sum()
        return total / sum(value.numel() for value in seen.values())


def off_rank_one(weight: Tensor) -> Tensor:
    """Which entries (classes, features) do not fit the product of two vectors; bool. By medians, which a few do not move."""
    reference = weight.abs().median(1).values.argmax()
    left = (weight / weight[reference]).median(1).values
    right = (weight / left[:, None]).median(0).values
    gap = (weight / left[:, None] - right).abs()
    # Zero over zero, where a layer is all noise or nothing was sent, fits nothing.
    return ~(gap <= 1e-3 * weight[reference].abs().median())


def variants(defense: DropFedSGD, facts: Facts) -> list[Variant]:
    """Looks for the dropped weights together with the image; rounds on the same examples are averaged."""
    why = "looks for the dropped weights together with the image; rounds on the same examples are averaged"
    if not 0 < defense.p < 1:
        return [Variant(why, lambda attack: attack, why_not=f"with p={defense.p} there is no mask to look for")]
    sigma = max(defense.sigma * defense.clip, TINY)

    def change(attack: Matching) -> Matching:
        attack = with_objective(attack, KeptOrDropped(p=defense.p, sigma=sigma, clip=defense.clip))
        attack = with_observer(with_labels(attack, "rows"), Dropped(p=defense.p))
        return averaged(with_tv(attack, least=PRIOR, most=PRIOR), facts)

    return [Variant(why, change)]
