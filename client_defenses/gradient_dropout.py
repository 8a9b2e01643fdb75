"""Gradient Dropout: scale what is kept, replace the rest by Gaussian decoys (its Algorithm 1), and what its theorems say."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from client_defenses.base import Defense, Memory
from client_defenses.tools.precision import narrowed, widened
from fl_app.core.local import Tensors


@dataclass(frozen=True, kw_only=True)
class GradientDropout(Defense):
    """Sends each entry as g/p with probability p, else a decoy from N(0, sigma²); sigma="match": the std of the tensor."""

    p: Annotated[float, Field(gt=0, le=1)] = 0.9
    sigma: Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["match"] = 5e-3

    def transform(self, grads: Tensors, memory: Memory) -> Tensors:
        """Algorithm 1, for each tensor by itself."""
        if self.p == 1:
            return grads
        return narrowed({name: self._drop(value, memory) for name, value in widened(grads).items()}, grads)

    def _drop(self, value: Tensor, memory: Memory) -> Tensor:
        kept = memory.uniform(value) < self.p
        # The uncorrected std, as a tensor of one entry has no other.
        sigma = torch.std(value, correction=0) if self.sigma == "match" else self.sigma
        return torch.where(kept, value / self.p, sigma * memory.normal(value))

    def expected(self, grads: Tensors) -> Tensors:
        """What a kept entry looks like: g/p."""
        return {name: value / self.p for name, value in grads.items()}


def expected_squared_error(grad: Tensor, p: float, sigma: float) -> Tensor:
    """E (sent - g)² of each entry; the last g² term in the proof of Theorem 1 has (1-p)² where (1-p) is right."""
    return grad.square() * ((1 - p) / p) + (1 - p) * sigma**2


def largest_p(loss: float, sigma: float) -> float:
    """Theorem 1: below this p the expected squared error, as a mean over entries, is above `loss` for every gradient."""
    if loss < 0 or sigma <= 0:
        raise ValueError(f"the loss must be at least 0 and sigma above 0, not {loss} and {sigma}")
    if loss >= sigma**2:
        raise ValueError(f"no p guarantees a loss above {loss} with sigma={sigma}: it must be below sigma² = {sigma**2:g}")
    return 1 - loss / sigma**2


def expected_cosine(norm: float, size: int, p: float, sigma: float) -> float:
    """Where the cosine of sent and true gradient concentrates, for `size` entries of total norm `norm` > 0 (Theorem 4)."""
    return 1 / math.sqrt(1 / p + size * (1 - p) * sigma**2 / norm**2)


def cosine_bound(p: float) -> float:
    """The bound of Theorem 4, whatever the gradient and the noise: sqrt(p)."""
    return math.sqrt(p)
