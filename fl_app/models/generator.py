"""Images out of short codes: a decoder in stages, which can be entered at any of its feature maps."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.core.spec import Checked

SMALLEST = 4
"""Pixels on a side from which images are enlarged, or the next that halving comes to."""
SLOPE = 0.2
"""Of leaky ReLUs."""
Size = Annotated[int, Field(ge=1, le=4096)]


@dataclass(frozen=True, kw_only=True)
class Design(Checked):
    """What a generator is built from."""

    shape: tuple[Size, Size, Size]
    """(channels, height, width) of its images."""
    classes: Annotated[int, Field(ge=0, le=10**5)] = 0
    """How many classes it is told apart; 0: it knows of none."""
    latent: Size = 64
    """Numbers in a code."""
    width: Annotated[int, Field(ge=1, le=512)] = 16
    """Channels at the full size; each halving of the size doubles them."""

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(height, width) of the feature maps, from the smallest to that of the images."""
        sizes = [(self.shape[1], self.shape[2])]
        while all(side % 2 == 0 and side > SMALLEST for side in sizes[0]):
            sizes.insert(0, (sizes[0][0] // 2, sizes[0][1] // 2))
        return sizes


class Generator(nn.Module):
    """(z, y) -> linear -> [nearest x 2, conv 3 x 3, leaky ReLU] at each size -> conv 3 x 3 -> sigmoid.

    Nothing is normalised over a batch, so that an image does not depend on its neighbours. Stage 1 is the map behind the
    linear layer, stage i that after i - 1 doublings.
    """

    def __init__(self, design: Design) -> None:
        super().__init__()
        self.design = design
        sizes, (colours, *_) = design.sizes, design.shape
        channels = [design.width * 2 ** (len(sizes) - 1 - i) for i in range(len(sizes))]
        self.start = (channels[0], *sizes[0])
        self.first = nn.Linear(design.latent + design.classes, channels[0] * sizes[0][0] * sizes[0][1])
        pairs = itertools.pairwise(channels)
        self.blocks = nn.ModuleList(nn.Conv2d(before, after, 3, padding=1) for before, after in pairs)
        self.last = nn.Conv2d(channels[-1], colours, 3, padding=1)

    @property
    def stages(self) -> int:
        """How many feature maps there are."""
        return 1 + len(self.blocks)

    def maps(self, z: Tensor, y: Tensor, stage: int = 1) -> Tensor:
        """The feature maps at a stage of codes z (n, latent) and classes y (n, classes), shares of them."""
        told = torch.cat([z, y.to(z)], dim=1) if self.design.classes else z
        return self.onward(F.leaky_relu(self.first(told), SLOPE).unflatten(1, self.start), 1, stage)

    def onward(self, x: Tensor, stage: int, until: int) -> Tensor:
        """The feature maps at a later stage of those x (n, channels, height, width) at an earlier one."""
        for block in list(self.blocks)[stage - 1 : until - 1]:
            x = F.leaky_relu(block(F.interpolate(x, scale_factor=2, mode="nearest")), SLOPE)
        return x

    def images(self, x: Tensor, stage: int) -> Tensor:
        """The images in [0, 1] of feature maps at a stage, (n, *shape)."""
        found: Tensor = self.last(self.onward(x, stage, self.stages))
        return found.sigmoid()

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """The images of codes z (n, latent) and classes y (n, classes), (n, *shape)."""
        return self.images(self.maps(z, y), 1)


def build(design: Design, seed: int = 0) -> Generator:
    """A generator whose weights are drawn anew."""
    # torch's initialisers draw from the global generator: borrow it, and leave it as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Generator(design)


def design_of(shape: Sequence[int], classes: int, *, small: bool = False) -> Design:
    """The usual design for images of a shape."""
    colours, height, width = shape
    latent = (32 if small else 64) * (2 if colours == 3 and not small else 1)
    return Design(shape=(colours, height, width), classes=classes, latent=latent, width=8 if small else 16)
