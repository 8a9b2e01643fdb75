"""The feature maps between a generator's blocks, within a ball around where the search started."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import AttackError
from adversary.spaces.base import Free, Variables
from adversary.spaces.latent import Codes, Generated, like_codes
from fl_app.core.local import Tensors
from fl_app.core.observation import Task
from fl_app.models.generator import Generator

MAPS, START = "maps", "start"


@dataclass(frozen=True, kw_only=True)
class FeatureMaps(Generated):
    """What one of the generator's blocks puts out (GIFD, Fang et al. 2023, section 3.2), in an L1 ball around its start."""

    stage: Annotated[int, Field(ge=1, le=32)] = 1
    """Which map: 1 is that behind the linear layer, each further one is twice as large."""
    radius: Annotated[float, Field(gt=0)] = 0.05
    """Of the ball, for each entry of the map (ours: the paper's are 1,000 and more for the maps of its own generators)."""

    def bind(self, task: Task, classes: Tensor | None = None, learned: Tensors | None = None) -> Variables:
        """The maps of a task."""
        network = self.network(task, learned)
        if self.stage > network.stages:
            raise AttackError(
                f"this generator has {network.stages} stages, and feature_maps(stage={self.stage}) is not among them"
            )
        return Maps(network, classes, self.stage, self.radius)


class Maps(Free, Codes):
    """Feature maps at a stage, with where they started, which is read and not moved."""

    def __init__(self, network: Generator, classes: Tensor | None, stage: int, radius: float) -> None:
        Codes.__init__(self, network, classes)
        self.stage, self.radius = stage, radius

    def draw(self, seeds: int, examples: int, stream: torch.Generator) -> Tensors:
        """The maps of random codes."""
        z = {
            name: value[None].to(next(self.network.parameters()).device)
            for name, value in self.codes(seeds, examples, stream).items()
        }
        own = Codes(self.network, None if "y" in z or not self.network.design.classes else self._any(examples))
        with torch.no_grad():
            x = own.maps(z, self.stage)[0].cpu()
        return {MAPS: x, START: x.clone()}

    def _any(self, examples: int) -> Tensor:
        """Equal shares of all classes, (1, examples, classes): a start must not depend on whose it is."""
        device, classes = next(self.network.parameters()).device, self.network.design.classes
        return torch.full((1, examples, classes), 1 / classes, device=device)

    def continued(self, z: Tensors, before: Variables) -> Tensors:
        """The maps of what was found, in a latent or at an earlier stage."""
        if isinstance(before, Maps) and before.stage <= self.stage and before.network.design == self.network.design:
            x = like_codes(self.network.onward(z[MAPS].flatten(0, 2), before.stage, self.stage), z[MAPS])
        elif isinstance(before, Codes) and "z" in z and len(z) <= 2 and before.network.design == self.network.design:
            x = before.maps(z, self.stage)
        else:
            raise AttackError("feature_maps goes on from a search in latent, or at an earlier stage, of the same generator")
        return {MAPS: x, START: x.clone()}

    def inputs(self, z: Tensors) -> Tensor:
        """The images."""
        return like_codes(self.network.images(z[MAPS].flatten(0, 2), self.stage), z[MAPS])

    def project(self, z: Tensors) -> Tensors:
        """Back into the ball of each example."""
        moved = (z[MAPS] - z[START]).flatten(3)
        return {MAPS: z[START] + in_ball(moved, self.radius * moved.shape[-1]).view_as(z[MAPS]), START: z[START]}


def in_ball(x: Tensor, radius: float) -> Tensor:
    """The nearest vectors (..., n) whose absolute entries sum to no more than a radius (Duchi et al. 2008, Figure 1)."""
    size = x.abs()
    ordered = size.sort(dim=-1, descending=True).values
    place = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
    surplus = (ordered.cumsum(-1) - radius) / place
    number = (ordered > surplus).sum(-1, keepdim=True).clamp_min(1)
    cut = surplus.gather(-1, number - 1).clamp_min(0)  # 0: it is in the ball already
    return x.sign() * (size - cut).clamp_min(0)
