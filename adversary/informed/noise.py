"""Defenses that add noise of a known law to all that is sent: dp_gaussian, dp_laplace, dp_sgd, ppfa."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import Facts
from adversary.informed.variant import Variant, most_likely, noise_proof
from adversary.objectives import TINY, Objective
from client_defenses import Defense
from fl_app.core.local import Tensors


@dataclass(frozen=True, kw_only=True)
class NoiseLaw(Objective):
    """-log of the probability that noise explains what is left: the sum over entries, so that a prior can be weighed with it.

    The clipping of the reconstruction's gradient is part of what is known; 0 stands for none.
    """

    scale: Annotated[float, Field(ge=0)] = 0.0
    """Of the noise: its standard deviation, or Laplace's scale."""
    relative: Annotated[float, Field(ge=0)] = 0.0
    """The same in units of the root mean square of each tensor's gradient, where `scale` is 0."""
    clip: Annotated[float, Field(ge=0)] = 0.0
    law: Literal["normal", "laplace"] = "normal"

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The negative log-likelihood, less a constant."""
        if self.clip:
            size = torch.stack([dummy[name].square().sum() for name in seen]).sum().add(TINY).sqrt()
            dummy = {name: dummy[name] * (self.clip / size.clamp_min(self.clip)) for name in seen}
        total = []
        for name, value in seen.items():
            # What was sent has the gradient's mean square and that of the noise in it.
            scale = self.scale or self.relative * (value.square().mean() / (1 + self.relative**2) + TINY).sqrt()
            gap = (value - dummy[name]) / scale
            total.append(gap.square().sum() / 2 if self.law == "normal" else gap.abs().sum())
        return torch.stack(total).sum()


def law_of(defense: Defense, facts: Facts) -> NoiseLaw | None:
    """The law of a defense's noise, for the mean of the rounds that are matched together; None if it adds none."""
    found = defense.noise_law()
    if found is None:
        return None
    rounds = facts.rounds if facts.repeats else 1
    # The search takes the mean over rounds, where the likelihood of all of them is the sum.
    shrink = 1 / rounds if found.kind == "laplace" else rounds**-0.5
    scale = found.scale / facts.examples if found.summed else found.scale
    return NoiseLaw(scale=scale * shrink, relative=found.relative * shrink, clip=found.clip or 0.0, law=found.kind)


def variants(defense: Defense, facts: Facts) -> list[Variant]:
    """The most likely image of its class given the noise's law; or what does not depend on the noise at all."""
    law = law_of(defense, facts)
    if law is None:
        return [noise_proof(facts)]
    why = "the most likely image of its class, given public examples and the law of the noise"
    return [most_likely(law, facts, why), noise_proof(facts)]
