"""Ridge regression with what it would say of each example if that one had been left out, which takes no second solution."""

from typing import NamedTuple

import torch
from torch import Tensor

from adversary.base import AttackError

STRENGTHS = tuple(10.0**power for power in range(-4, 2))
"""Ridge weights that are tried, in units of the mean squared size of an example (ours)."""

POWERS = 40
"""How many powers of ten a strength may be raised by before updates count as beyond repair."""


class Line(NamedTuple):
    """A linear map (features, wanted), and what it would answer to each example if that one had been left out."""

    map: Tensor
    left_out: Tensor


class Products:
    """The products that ridge regressions of different strengths on the same features (n, size) have in common."""

    def __init__(self, features: Tensor, wanted: Tensor) -> None:
        self.features, self.wanted = features, wanted
        self.unit = features.square().sum(1).mean().clamp_min(1e-30)
        self.few = len(features) <= features.shape[1]  # the smaller of the two systems has the same answer
        self.matrix = features @ features.T if self.few else features.T @ features
        self.right = wanted if self.few else features.T @ wanted

    def map(self, strength: float) -> Tensor:
        """The linear map (size, values)."""
        found = torch.cholesky_solve(self.right, self._factor(strength))
        return self.features.T @ found if self.few else found

    def line(self, strength: float) -> Line:
        """The map, and what it says of an example that it does not know: by the leverage of each example."""
        factor = self._factor(strength)
        found = torch.cholesky_solve(self.right, factor)
        if self.few:
            diagonal = torch.cholesky_inverse(factor).diagonal()
            return Line(self.features.T @ found, self.wanted - found / diagonal[:, None])
        leverage = torch.linalg.solve_triangular(factor, self.features.T, upper=False).square().sum(0).clamp_max(0.999)
        gap = (self.wanted - self.features @ found) / (1 - leverage)[:, None]
        return Line(found, self.wanted - gap)

    def _factor(self, strength: float) -> Tensor:
        """The Cholesky factor; where rounding leaves none, of the next strength that has one."""
        lift = torch.eye(len(self.matrix)).to(self.matrix) * self.unit
        for power in range(POWERS):
            factor, failed = torch.linalg.cholesky_ex(self.matrix + strength * 10.0**power * lift)
            if not bool(failed):
                return torch.as_tensor(factor)
        raise AttackError("updates of public examples are not finite, so that nothing can be learned from them")
