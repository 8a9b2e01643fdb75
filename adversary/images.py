"""How a guess is parametrised: the free variable z of an attack, and the image in [0, 1] that it stands for."""

from typing import Literal

import torch
from torch import Tensor, nn


class Pixels:
    """x = mean + std * z: pixels on the scale on which the model sees them, as in the papers' code.

    The mean and std are those of the model's own first layer, which the server knows; without one, z is the image.
    """

    def __init__(self, model: nn.Module, init: Literal["normal", "uniform"]) -> None:
        layer = getattr(model, "normalize", None)
        self.mean: Tensor | float = layer.mean if layer is not None else 0.0
        self.std: Tensor | float = layer.std if layer is not None else 1.0
        self.init = init

    def draw(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """A random start."""
        if self.init == "uniform":
            return (torch.rand(shape, generator=rng) - self._cpu(self.mean)) / self._cpu(self.std)
        return torch.randn(shape, generator=rng)

    def image(self, z: Tensor) -> Tensor:
        """The image of z."""
        return self.mean + self.std * z

    def clamp(self, z: Tensor) -> Tensor:
        """The nearest z whose image lies in [0, 1]."""
        return (self.image(z).clamp(0, 1) - self.mean) / self.std

    @staticmethod
    def _cpu(value: Tensor | float) -> Tensor | float:
        return value.cpu() if isinstance(value, Tensor) else value
