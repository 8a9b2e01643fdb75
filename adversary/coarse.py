"""Attacks that search small images first, then larger ones: presets of gradient matching in phases."""

from dataclasses import dataclass

from adversary.objectives import Relative
from adversary.presets import Preset
from adversary.priors import TotalVariation, Weight
from adversary.search.matching import Matching
from adversary.search.optimizers import LBFGS, Adam, Count, Rate
from adversary.search.phases import Phase
from adversary.spaces.contrast import Contrast
from adversary.spaces.lowres import Factor, LowResolution
from adversary.spaces.pixels import Pixels


@dataclass(frozen=True, kw_only=True)
class ROG(Preset):
    """ROG's search (Yue et al. 2023): squared L2 over small images under Adam 0.05, here released to all pixels at the end.

    Without the paper's networks that clean what was found, and with step decay where it has a cosine.
    """

    factor: Factor = 4
    """Pixels on a side that are one of the small image."""
    lr: Rate = 0.05
    iterations: Count = 100
    release: Count = 50  # ours
    """Further steps, over all pixels."""

    def matching(self) -> Matching:
        """L2 over small images, then over pixels."""
        return Matching(
            space=LowResolution(factor=self.factor),
            labels=self.labels,
            optimizer=Adam(iterations=self.iterations, lr=self.lr, decay=True),
            phases=(Phase(space=Pixels(), optimizer=Adam(iterations=self.release, lr=self.lr, decay=True)),),
        )


@dataclass(frozen=True, kw_only=True)
class CoarseToFine(Preset):
    """Ours, for large photos and smooth networks: the relative distance under L-BFGS, over small images, then larger ones.

    Networks that normalise do not show an image's contrast, which is held at that of public photos (space contrast).
    docs/high-resolution.md says on what it was chosen.
    """

    tv: Weight = 0.03
    coarsest: Factor = 16
    """Pixels on a side that are one at first; halved from phase to phase."""
    finest: Factor = 2
    """Pixels on a side that are one at last; 1: all pixels."""
    iterations: Count = 100
    """Steps of each phase."""

    def matching(self) -> Matching:
        """The relative distance over one size after the other."""
        factors = [max(self.coarsest, self.finest)]
        while factors[-1] > self.finest:
            factors.append(max(factors[-1] // 2, self.finest))
        first, *others = (Contrast(space=LowResolution(factor=factor, boxed=False)) for factor in factors)
        return Matching(
            objective=Relative(),
            space=first,
            priors=(TotalVariation(weight=self.tv),) if self.tv else (),
            labels=self.labels,
            optimizer=LBFGS(iterations=self.iterations),
            phases=tuple(Phase(space=space, optimizer=LBFGS(iterations=self.iterations)) for space in others),
        )
