"""PPFA (Zhang et al. 2023, arXiv 2305.15148), as FedEM uses it for comparison."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from pydantic import Field

from client_defenses.base import Defense, Memory
from client_defenses.tools.noise import Noise
from client_defenses.tools.precision import narrowed, widened
from fl_app.core.local import Tensors


def gaussian_distance(growth: float) -> float:
    """Distance between N(0, 1) and N(0, growth), growth >= 1: the two densities cross at +-cross."""
    if growth == 1:
        return 0.0
    cross = math.sqrt(growth * math.log(growth) / (growth - 1) / 2)
    return math.erf(cross) - math.erf(cross / math.sqrt(growth))


@cache
def noise_for(budget: float) -> float:
    """Least noise, in units of the std of a Gaussian value, that moves its distribution by 1 - budget in total variation."""
    low, high = 1.0, 2.0
    while gaussian_distance(high) < 1 - budget:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_distance(middle) < 1 - budget else (low, middle)
    return math.sqrt(high - 1) if budget < 1 else 0.0


@dataclass(frozen=True, kw_only=True)
class PPFA(Defense):
    """PPFA: each tensor gets the least Gaussian noise that keeps a bound on the privacy leakage within `budget`.

    Known from the abstract and from FedEM (Tables 16, 20, 24): it protects by distorting what is sent, measures the leakage by
    a function of the distortion, adapts the noise to each parameter, client and round with the least loss of utility, and a
    budget nearer 1 means less noise (0.995, 0.99, 0.98, 0.97, 0.8). Not known to us: its measure, its online learning of the
    noise, and how FedEM carried it over. We take leakage <= 1 - TV(plain value || sent value), the form of these authors'
    other work, with a tensor's entries as Gaussians of its root mean square; then the least noise has a closed form. FedEM's
    accuracies under PPFA cannot be expected of this reading. It promises no epsilon of differential privacy.
    """

    budget: Annotated[float, Field(gt=0, le=1)] = 0.995

    def transform(self, grads: Tensors, memory: Memory) -> Tensors:
        """Add noise in proportion to each tensor's root mean square."""
        factor = noise_for(self.budget)
        if factor == 0:
            return grads
        wide = widened(grads)
        return narrowed(
            {name: value + factor * value.square().mean().sqrt() * memory.normal(value) for name, value in wide.items()}, grads
        )

    def noise_law(self) -> Noise | None:
        """Of the gradient, in proportion to each tensor."""
        factor = noise_for(self.budget)
        return Noise(relative=factor) if factor > 0 else None
