"""Sign compression: one bit for each entry (signSGD; with memory EF-signSGD of Karimireddy et al. 2019)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from client_defenses.base import Memory
from client_defenses.tools.error_feedback import Compressor, straight_through
from fl_app.core.local import Tensors


@dataclass(frozen=True, kw_only=True)
class Sign(Compressor):
    """Sends the signs of the entries, times the mean |g| of their tensor or as they are; zero stays zero."""

    scale: Literal["mean", "none"] = "mean"

    def compress(self, grads: Tensors, memory: Memory) -> Tensors:
        """The signs, scaled."""
        return {name: signs(value, self.scale) for name, value in grads.items()}

    def expected(self, grads: Tensors) -> Tensors:
        """The compressed gradient with the derivative of the identity."""
        return straight_through(grads, {name: signs(value, self.scale) for name, value in grads.items()})


def signs(value: Tensor, scale: Literal["mean", "none"]) -> Tensor:
    """The signs of a tensor of any shape, times its mean |g| (the factor of least squared error) or one."""
    return torch.sign(value) * value.abs().mean() if scale == "mean" else torch.sign(value)
