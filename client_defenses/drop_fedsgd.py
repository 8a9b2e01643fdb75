"""Drop-FedSGD: the gradient of a model without some of its weights, with noise in their place (its Algorithm 3)."""

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from pydantic import Field

from client_defenses.base import Defense, Memory
from client_defenses.tools.clipping import clip
from client_defenses.tools.precision import narrowed, widened
from fl_app.core.local import Step, Tensors


@dataclass(frozen=True, kw_only=True)
class DropFedSGD(Defense):
    """Drops each weight with probability p, clips the gradient of the rest, sends N(0, (sigma clip)²) for the dropped."""

    p: Annotated[float, Field(ge=0, le=1)] = 0.05
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    sigma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """Noise over clip; the paper calls it "deliberately small" and gives no number."""

    def gradient(self, step: Step, memory: Memory) -> Tensors:
        """Algorithm 3: entries of dropped weights are pure noise, all others exact but for the clipping."""
        dropped = {name: memory.uniform(value) < self.p for name, value in step.params.items()}
        thinned = {name: value.masked_fill(dropped[name], 0) for name, value in step.params.items()}
        grads = step._replace(params=thinned).gradient()
        # The chain rule through w * (1 - M); before the clipping, since these entries must not count in the norm.
        kept = {name: value.masked_fill(dropped[name], 0) for name, value in widened(grads).items()}
        noisy = {
            name: torch.where(dropped[name], self.sigma * self.clip * memory.normal(value), value)
            for name, value in clip(kept, self.clip).items()
        }
        return narrowed(noisy, grads)

    def expected(self, grads: Tensors) -> Tensors:
        """The clipped gradient."""
        return clip(grads, self.clip)


class Calibration(NamedTuple):
    """A sigma, and what has to be said with it."""

    sigma: float
    caveat: str


def calibrate(epsilon: float, delta: float, p: float, sensitivity: float = 2.0) -> Calibration:
    """The sigma of the paper's Theorem 1; `sensitivity` is its output range Delta over the clip (2: an example replaced)."""
    if not (epsilon > 0 and 0 < p < 1 and sensitivity > 0):
        raise ValueError(f"epsilon and sensitivity must be above 0 and p inside (0, 1): {epsilon}, {sensitivity}, {p}")
    least = 1 - (1 - p) ** 2
    if not least < delta < 1:
        raise ValueError(f"with p={p} the theorem needs a delta between 1-(1-p)² = {least:.6g} and 1, not {delta}")
    factor = math.sqrt(2 * math.log(1.25 * (1 - p) ** 2 / (delta - least)))
    caveat = (
        f"Not an ordinary differential privacy guarantee: entries whose weight is kept (a share of {1 - p:g}) leave without "
        f"noise, and the theorem needs delta > 1-(1-p)² = {least:.6g}, here {delta:g}, where 1e-5 is usual. Its proof treats "
        "one entry of one step and, for the Gaussian tail, epsilon <= 1."
    )
    return Calibration(sensitivity * factor / epsilon, caveat)
