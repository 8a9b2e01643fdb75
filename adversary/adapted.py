"""An update compared through what it shows of the defense itself: GGL's adaptive matching."""

from dataclasses import dataclass

import torch
from torch import Tensor

from adversary.entries import Masked
from adversary.objectives import TINY
from fl_app.core.local import Tensors


@dataclass(frozen=True, kw_only=True)
class Adapted(Masked):
    """Another objective, after the reconstruction's update lost what was sent as zero and was clipped to the observed size.

    GGL (Li et al. 2022, section 3.3): the bound of clipping is estimated by the size of what was sent, the mask of pruning and
    of Soteria by its zeros; noise is left alone.
    """

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The distance of what would have been sent."""
        return self.objective(clipped(dummy, seen), seen, progress)

    def residuals(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """Those of the other objective."""
        return self.objective.residuals(clipped(dummy, seen), seen, progress)


def clipped(dummy: Tensors, seen: Tensors) -> Tensors:
    """An update on the support of another one, and no larger."""
    masked = {name: dummy[name] * (seen[name] != 0) for name in seen}
    ours, theirs = (torch.stack([one[name].square().sum() for name in seen]).sum() for one in (masked, seen))
    scale = (theirs / (ours + TINY)).sqrt().clamp(max=1.0)
    return {name: scale * value for name, value in masked.items()}
