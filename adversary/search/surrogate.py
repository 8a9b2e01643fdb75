"""Several local steps matched as one gradient, at weights between those before and those after the steps."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from adversary.search.observers import Local, Observer
from fl_app.core.local import Step, Tensors
from fl_app.core.observation import Observation, Task

POSITION = "position"


@dataclass(frozen=True, kw_only=True)
class Surrogate(Observer):
    """Surrogate model extension (Zhu et al. 2023): the weights change along one gradient over all examples.

    The gradient is taken at w0 + a (wT - w0), and a is searched for together with the examples. Nothing is unrolled, so an
    iteration costs the same for any number of steps. Needs an objective that is blind to scale.
    """

    unrolls: ClassVar[bool] = False
    start: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Where a starts; the middle of the way is the paper's."""
    pace: Annotated[float, Field(ge=0)] = 0.1
    """How far a moves beside a pixel (ours: 0.01 stayed at the start on some of 3 images); 0 keeps it where it starts."""

    def draw(self, seen: Observation, task: Task) -> Tensors:
        """The start, on the scale of the search; nothing where a gradient was sent."""
        return {POSITION: torch.tensor([self.start / self.pace])} if self.pace and seen.rule.kind == "delta" else {}

    def project(self, unknown: Tensors) -> Tensors:
        """Keep a on the way from the first weights to the last."""
        return {name: value.clamp(0, 1 / self.pace) for name, value in unknown.items()}

    def update(self, local: Local, unknown: Tensors) -> Tensors | None:
        """Minus the gradient at the surrogate weights; of a client that sends a gradient there is nothing to replace."""
        if local.rule.kind == "gradient":
            return None
        a = unknown[POSITION] * self.pace if self.pace else self.start
        weights = {name: value + a * local.observed[name] for name, value in local.params.items()}
        gradient = local.gradient(Step(weights, local.model, local.x, local.y))
        decay = local.rule.weight_decay
        return {name: -value - decay * weights[name] for name, value in gradient.items()}
