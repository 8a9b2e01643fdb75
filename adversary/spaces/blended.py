"""Examples with a share of uniform noise blended in: the model is fed the mixture, and the example alone is answered."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from adversary.spaces.base import Variables
from adversary.spaces.gaussian import ClassGaussian
from fl_app.core.local import Tensors
from fl_app.core.observation import Task
from fl_app.core.space import Space

SPREAD = 12**-0.5
"""The standard deviation of U(0, 1)."""


@dataclass(frozen=True, kw_only=True)
class Blended(ClassGaussian):
    """(1 - alpha) x + alpha u with x as in class_gaussian and u in U(0, 1): the search tells the two apart.

    A uniform draw counts as a Gaussian one of the same mean and spread, so what is noise and what is image goes by how public
    images vary: the best linear filter, and at once with the match.
    """

    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.5

    def bind(self, task: Task, classes: Tensor | None = None, learned: Tensors | None = None) -> Variables:
        """The Gaussian of each example's class, and the noise."""
        return _Blended(super().bind(task, classes, learned), self.alpha, task.space)


class _Blended:
    def __init__(self, images: Variables, alpha: float, space: Space) -> None:
        self.images, self.alpha, self.shape = images, alpha, space.shape

    def draw(self, seeds: int, examples: int, stream: torch.Generator) -> Tensors:
        return {**self.images.draw(seeds, examples, stream), "noise": torch.zeros(seeds, examples, *self.shape)}

    def inputs(self, z: Tensors) -> Tensor:
        return (1 - self.alpha) * self.images.inputs(z) + self.alpha * (0.5 + SPREAD * z["noise"])

    def project(self, z: Tensors) -> Tensors:
        return z

    def answer(self, z: Tensors) -> Tensor:
        return self.images.answer(z)

    def penalty(self, z: Tensors) -> Tensor:
        """-log of the images' density and of the noise's, (targets, seeds)."""
        return self.images.penalty(z) + z["noise"].square().flatten(2).sum(-1) / 2

    def residuals(self, z: Tensors) -> Tensor:
        """What its squares are, (targets, seeds, residuals)."""
        return torch.cat([self.images.residuals(z), z["noise"].flatten(2) / 2**0.5], dim=2)
