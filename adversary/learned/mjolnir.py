"""Mjolnir (Liu et al. 2025): a diffusion model takes the noise off an update, then the examples are searched for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from adversary.base import Attack, Facts, Guess, Informed, Public
from adversary.denoise.diffusion import Diffusion
from adversary.objectives import Cosine
from adversary.presets import Preset
from adversary.priors import TotalVariation, Weight
from adversary.search.matching import Matching
from adversary.search.optimizers import LBFGS, Count
from adversary.spaces.pixels import Pixels
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task


@dataclass(frozen=True, kw_only=True)
class Mjolnir(Preset):
    """The diffusion denoiser at the weights of the round, trained on public updates there, before L-BFGS.

    The paper trains on a surrogate's gradients and searches by DLG; the weights of the round are known, and the cosine with a
    little total variation finds more (ours).
    """

    trained: ClassVar[bool] = True
    noise: Annotated[float, Field(gt=0)] = 0.1
    """The standard deviation of the noise on every entry, as far as it is known."""
    clip: Annotated[float, Field(ge=0)] = 0.0
    """The norm to which a client clips its update before the noise; 0: it does not."""
    training: Annotated[int, Field(ge=1, le=10**7)] = 1500
    """Steps of Adam on the diffusion model."""
    width: Annotated[int, Field(ge=1, le=1024)] = 32
    iterations: Count = 500
    tv: Weight = 1e-2

    def matching(self) -> Matching:
        """The search, with the denoiser in front."""
        denoiser = Diffusion(noise=self.noise, clip=self.clip, iterations=self.training, width=self.width)
        return Matching(
            denoisers=(denoiser,),
            objective=Cosine(),
            space=Pixels(init="uniform", boxed=False),
            priors=(TotalVariation(weight=self.tv),) if self.tv else (),
            labels=self.labels,
            optimizer=LBFGS(iterations=self.iterations),
        )

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """What its denoiser learns."""
        return self.matching().learn(task, seen, public, rng)

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Denoise, then search."""
        return self.matching().taught(self.learned).run(seen, task, streams)

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """The same, told how much noise there is and where it was clipped."""
        from adversary.informed.denoised import white_noise  # only informed attackers know defenses

        known = white_noise(defense, facts)
        if known is None:
            return []
        return [Informed("", replace(self, noise=known[0], clip=known[1]), "enters the diffusion at the level of the noise")]

    def shortened(self, iterations: int) -> Attack:
        """The same with so many iterations of the search, after a short training."""
        return replace(self, iterations=iterations, training=min(self.training, 10 * iterations))
