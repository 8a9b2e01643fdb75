"""Small images that are enlarged: fewer unknowns than pixels, and what they can show is smooth."""

from dataclasses import dataclass
from math import ceil
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from adversary.base import AttackError
from adversary.spaces.base import Free, Parametrisation, Variables
from adversary.spaces.pairing import paired_means
from fl_app.core.local import Tensors
from fl_app.core.observation import Task

Factor = Annotated[int, Field(ge=1, le=64)]
"""How many pixels of an image are one of what is searched, on each side."""


@dataclass(frozen=True, kw_only=True)
class LowResolution(Parametrisation):
    """x = bicubic_up(v) with v smaller by a factor on each side (Yue et al. 2023, ROG, section 4.2)."""

    factor: Factor = 4
    init: Literal["uniform", "grey"] = "uniform"
    """Start from v in U(0, 1), as in the paper, or from grey, but for a little noise that tells examples apart (ours)."""
    boxed: bool = True
    """Keep v in the task's space after each step."""

    def bind(self, task: Task, classes: Tensor | None = None, learned: Tensors | None = None) -> Variables:
        """The small images of a task."""
        if len(task.space.shape) != 3:
            raise AttackError("the space lowres enlarges images of (channels, height, width), and these examples are none")
        return _Small(self, task, classes)


class _Small(Free):
    def __init__(self, settings: LowResolution, task: Task, classes: Tensor | None) -> None:
        self.classes = classes
        self.settings, self.space = settings, task.space
        self.colours, *self.size = task.space.shape
        self.small = [ceil(side / settings.factor) for side in self.size]

    def draw(self, seeds: int, examples: int, stream: torch.Generator) -> Tensors:
        v = torch.rand((seeds, examples, self.colours, *self.small), generator=stream)
        return {"v": v if self.settings.init == "uniform" else 0.5 + 0.04 * (v - 0.5)}

    def continued(self, z: Tensors, before: Variables) -> Tensors:
        """The images that were found, of several seeds their mean, made small by the mean of pixels."""
        x = paired_means(before.inputs(z), self.classes)[:, None]
        return {"v": F.interpolate(x.flatten(0, 2), size=self.small, mode="area").view(*x.shape[:4], *self.small)}

    def inputs(self, z: Tensors) -> Tensor:
        v = z["v"]
        large = F.interpolate(v.flatten(0, 2), size=self.size, mode="bicubic", align_corners=False)
        return large.view(*v.shape[:4], *self.size)

    def project(self, z: Tensors) -> Tensors:
        return {"v": self.space.hull(z["v"])} if self.settings.boxed else z
