"""Examples as the output of an untrained network: what convolutions make easily is what images look like."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from adversary.base import AttackError
from adversary.spaces.base import Free, Parametrisation, Variables
from fl_app.core.local import Tensors
from fl_app.core.observation import Task

Channels = Annotated[int, Field(ge=0, le=1024)]
"""Of convolutions below 64 pixels; 0: 32, doubled until there are over four weights for each pixel of a batch (the paper's)."""
CODE = 128
"""Numbers that an image is made of, drawn once and never moved (the paper's)."""
SMALLEST = 4
"""Pixels on a side from which images are enlarged, or the next that halving comes to (the paper's)."""
LARGE = 64
"""Pixels on a side from which on each size has half the channels of the one before (the paper's)."""
SLOPE = 0.1
"""Of leaky ReLUs (the paper's)."""


@dataclass(frozen=True, kw_only=True)
class Untrained(Parametrisation):
    """x = sigmoid(G(code)) with one network G for each reconstruction, whose weights are searched (Zhang et al. 2023, CI-Net).

    Between 4 x 4 pixels and the image's size there are two convolutions of 3 x 3 at each size, each normalised over the batch
    and followed by a leaky ReLU; sizes double by repeating pixels, and from 64 pixels on channels are halved each time. Without
    the paper's spectral norm, and with a sigmoid where it has a tanh (ours).
    """

    channels: Channels = 0

    def bind(self, task: Task, classes: Tensor | None = None, learned: Tensors | None = None) -> Variables:
        """The networks of a task."""
        if len(task.space.shape) != 3:
            raise AttackError("the space untrained draws images of (channels, height, width), and these examples are none")
        return _Networks(self, task)


class _Networks(Free):
    def __init__(self, settings: Untrained, task: Task) -> None:
        self.settings, self.task = settings, task
        self.colours, *size = task.space.shape
        sizes = [tuple(size)]
        while all(side % 2 == 0 and side > SMALLEST for side in sizes[0]):
            sizes.insert(0, tuple(side // 2 for side in sizes[0]))
        self.sizes = sizes

    def shapes(self, examples: int) -> dict[str, tuple[int, ...]]:
        """The weights of a network for so many examples, in the order of their use."""
        channels = self.settings.channels or 32
        while not self.settings.channels and _number(self._shapes(channels)) <= 4 * examples * prod(self.task.space.shape[1:]):
            channels *= 2
        return self._shapes(channels)

    def _shapes(self, channels: int) -> dict[str, tuple[int, ...]]:
        large = [max(size) >= LARGE for size in self.sizes]
        widths = [max(1, channels >> sum(large[: stage + 1])) for stage in range(len(self.sizes))]
        out = [channels, *(width for width in widths for _ in range(2))]
        found: dict[str, tuple[int, ...]] = {"first": (CODE, channels, *self.sizes[0])}
        found |= {f"conv{i}": (after, before, 3, 3) for i, (before, after) in enumerate(pairwise(out))}
        found |= {f"{part}{i}": (width,) for part in ("scale", "shift") for i, width in enumerate(out)}
        return {**found, "last": (self.colours, out[-1], 1, 1), "bias": (self.colours,)}

    def draw(self, seeds: int, examples: int, stream: torch.Generator) -> Tensors:
        """Codes from N(0, 1), and weights as torch draws those of convolutions."""
        found = {"code": torch.randn((seeds, examples, CODE), generator=stream)}
        for name, shape in self.shapes(examples).items():
            if name.startswith(("scale", "shift")):
                found[name] = torch.full((seeds, *shape), float(name.startswith("scale")))
                continue
            bound = (CODE if name == "first" else prod(shape[1:])) ** -0.5
            found[name] = bound * (2 * torch.rand((seeds, *shape), generator=stream) - 1)
        return found

    def inputs(self, z: Tensors) -> Tensor:
        targets, seeds = z["code"].shape[:2]
        images: Tensor = vmap(self._image)({name: value.flatten(0, 1) for name, value in z.items()})
        return images.view(targets, seeds, *images.shape[1:])

    def _image(self, z: Tensors) -> Tensor:
        """The images (examples, *shape) of one network."""
        code, channels = z["code"].detach(), z["first"].shape[1]
        x = (code @ z["first"].flatten(1)).view(-1, channels, *self.sizes[0])
        x = _normalised(x, z["scale0"], z["shift0"])
        for stage, (before, size) in enumerate(pairwise([self.sizes[0], *self.sizes])):
            if size != before:
                x = x.repeat_interleave(2, -2).repeat_interleave(2, -1)
            for i in (2 * stage, 2 * stage + 1):
                x = _normalised(F.conv2d(x, z[f"conv{i}"], padding=1), z[f"scale{i + 1}"], z[f"shift{i + 1}"])
        return F.conv2d(x, z["last"], z["bias"]).sigmoid()


def _normalised(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Batch norm by the statistics of the batch (examples, channels, height, width), and a leaky ReLU."""
    variance, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0, keepdim=True)
    x = (x - mean) * (scale[:, None, None] * (variance + 1e-5).rsqrt()) + shift[:, None, None]
    return F.leaky_relu(x, SLOPE)


def _number(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(map(prod, shapes.values()))
