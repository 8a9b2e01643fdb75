"""What somebody knows of an image before any update: the mean and covariance of its class, learned from public images."""

from typing import NamedTuple

import torch
from torch import Tensor

LEAST = 50
"""Public images of a class from which its own law is taken; with fewer that of all classes is (ours)."""


class Prior(NamedTuple):
    """x = mean + z @ basis, z in N(0, I): mean (pixels,), basis (components, pixels) of orthogonal rows, the longest first.

    Directions beyond the basis have no spread: they count as known.
    """

    mean: Tensor
    basis: Tensor

    def draw(self, rng: torch.Generator) -> Tensor:
        """An image, (pixels,)."""
        return self.mean + torch.randn(len(self.basis), generator=rng, dtype=torch.float64) @ self.basis

    @property
    def blind(self) -> float:
        """The mean squared error by pixel of the best answer without an update, the mean."""
        return self.basis.square().sum().item() / len(self.mean)

    def leading(self, components: int) -> "Prior":
        """With the rest of the image known: a bound for it holds for those who know less."""
        return Prior(self.mean, self.basis[:components])


def of_class(x: Tensor, y: Tensor, label: int) -> Prior:
    """That of one class, from public images x (n, *shape) and their classes."""
    own = x[y == label]
    return fitted(own if len(own) >= LEAST else x)


def fitted(x: Tensor) -> Prior:
    """The Gaussian with the mean and covariance of images (n, *shape)."""
    flat = x.flatten(1).double()
    mean = flat.mean(0)
    _, sizes, directions = torch.linalg.svd((flat - mean) / max(1, len(flat) - 1) ** 0.5, full_matrices=False)
    some = sizes > 1e-9 * sizes[0].clamp_min(1e-300)
    return Prior(mean, sizes[some, None] * directions[some])
