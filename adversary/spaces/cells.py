"""Rows of a table as a search sees them: a category is a softmax over its values, a number is itself."""

from dataclasses import dataclass

import torch
from torch import Tensor

from adversary.spaces.base import Free, Parametrisation, Variables
from fl_app.core.local import Tensors
from fl_app.core.observation import Task
from fl_app.core.table import Rows

START = 0.1
"""Standard deviation of the logits of categories at the start: no value is preferred (ours)."""


@dataclass(frozen=True, kw_only=True)
class Cells(Parametrisation):
    """The cells of rows: of a category the logits of its values, so that it never leaves the simplex; numbers start at 0.5.

    Without categories, as of images, it is the floats themselves.
    """

    def bind(self, task: Task, classes: Tensor | None = None, learned: Tensors | None = None) -> Variables:
        """The cells of a task."""
        return _Cells(task)


class _Cells(Free):
    def __init__(self, task: Task) -> None:
        self.space = task.space
        self.blocks = task.space.categories if isinstance(task.space, Rows) else []
        self.numbers = torch.ones(task.space.shape)
        for block in self.blocks:
            self.numbers[block] = 0.0

    def draw(self, seeds: int, examples: int, stream: torch.Generator) -> Tensors:
        noise = torch.randn((seeds, examples, *self.space.shape), generator=stream)
        return {"x": 0.5 * self.numbers + START * noise}

    def inputs(self, z: Tensors) -> Tensor:
        x = z["x"]
        if not self.blocks:
            return x
        parts, end = [], 0
        for block in self.blocks:
            parts += [x[..., end : block.start], x[..., block].softmax(-1)]
            end = block.stop
        return torch.cat([*parts, x[..., end:]], dim=-1)
