"""Examples of their own for each epoch of local steps, for clients that shuffle: averaged in the end."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from adversary.spaces.base import Parametrisation, Variables
from adversary.spaces.pairing import paired_means
from adversary.spaces.pixels import Init, Pixels
from fl_app.core.local import Tensors
from fl_app.core.observation import Task


@dataclass(frozen=True, kw_only=True)
class Epochs(Parametrisation):
    """Pixels for each epoch by itself (Dimitrov et al. 2022): no order of the examples has to be the right one.

    What ties the epochs is the prior `same_mean`. Examples of several epochs are paired at the least cost, within their
    class if it is known, and averaged.
    """

    number: Annotated[int, Field(ge=1, le=1000)]
    init: Init = "uniform"
    boxed: bool = True

    def bind(self, task: Task, classes: Tensor | None = None, learned: Tensors | None = None) -> Variables:
        """The pixels of all epochs."""
        return _Epochs(self.number, Pixels(init=self.init, boxed=self.boxed).bind(task), classes)


class _Epochs:
    def __init__(self, number: int, pixels: Variables, classes: Tensor | None) -> None:
        self.number, self.pixels, self.classes = number, pixels, classes
        self.inputs, self.project = pixels.inputs, pixels.project
        self.penalty, self.residuals = pixels.penalty, pixels.residuals

    def draw(self, seeds: int, examples: int, stream: torch.Generator) -> Tensors:
        return self.pixels.draw(seeds, self.number * examples, stream)

    def answer(self, z: Tensors) -> Tensor:
        """The mean over epochs of what belongs together, (targets, seeds, examples, *shape)."""
        x = self.pixels.answer(z)
        targets, seeds = x.shape[:2]
        epochs = x.unflatten(2, (self.number, -1)).flatten(0, 1)
        classes = None if self.classes is None else self.classes.repeat_interleave(seeds, 0)
        means: Tensor = paired_means(epochs, classes).unflatten(0, (targets, seeds))
        return means
