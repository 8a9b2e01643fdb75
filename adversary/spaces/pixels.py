"""Pixels on the scale on which the model sees them, as in the papers' code."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from adversary.spaces.base import Free, Parametrisation, Variables
from adversary.spaces.pairing import paired_means
from fl_app.core.local import Tensors
from fl_app.core.observation import Task

Init = Literal["normal", "uniform", "grey"]


@dataclass(frozen=True, kw_only=True)
class Pixels(Parametrisation):
    """The pixels themselves, each example x = mean + std * z."""

    init: Init = "normal"
    """Start from z in N(0, 1), from x in U(0, 1), or from grey, but for a little noise that tells examples apart."""
    boxed: bool = True
    """Keep x in the task's space after each step."""

    def bind(self, task: Task, classes: Tensor | None = None, learned: Tensors | None = None) -> Variables:
        """The pixels of a task."""
        return _Pixels(self, task, classes)


class _Pixels(Free):
    """The mean and std are those of the model's own first layer, which the server knows; without one, z is the image."""

    def __init__(self, settings: Pixels, task: Task, classes: Tensor | None = None) -> None:
        self.classes = classes
        self.mean, self.std = scale_of(task)
        self.settings, self.space = settings, task.space

    def draw(self, seeds: int, examples: int, stream: torch.Generator) -> Tensors:
        shape = (seeds, examples, *self.space.shape)
        if self.settings.init == "normal":
            return {"x": torch.randn(shape, generator=stream)}
        x = torch.rand(shape, generator=stream)
        x = x if self.settings.init == "uniform" else 0.5 + 0.04 * (x - 0.5)
        return {"x": (x - _cpu(self.mean)) / _cpu(self.std)}

    def inputs(self, z: Tensors) -> Tensor:
        return self.mean + self.std * z["x"]

    def continued(self, z: Tensors, before: Variables) -> Tensors:
        """The images that were found, of several seeds their mean."""
        return {"x": (paired_means(before.inputs(z), self.classes)[:, None] - self.mean) / self.std}

    def project(self, z: Tensors) -> Tensors:
        return {"x": (self.space.hull(self.inputs(z)) - self.mean) / self.std} if self.settings.boxed else z


def scale_of(task: Task) -> tuple[Tensor | float, Tensor | float]:
    """Mean and std by channel of the model's first layer, if that normalises; else 0 and 1."""
    layer = getattr(task.model, "normalize", None)
    return (0.0, 1.0) if layer is None else (layer.mean, layer.std)


def _cpu(value: Tensor | float) -> Tensor | float:
    return value.cpu() if isinstance(value, Tensor) else value
