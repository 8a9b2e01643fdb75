"""Blocks that a server can put in front of a model: with weights of zero they change nothing, with crafted ones they leak.

A block adds one number to all pixels of an image. What it learns from the gradient of that number is another matter.
"""

from collections.abc import Callable
from math import prod
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from fl_app.models.layers import Shape

PIXEL = 255.0
"""By what an imprint block multiplies pixels: it makes changes of its weights large beside the weights, and so exact."""
Bins = Annotated[int, Field(ge=2, le=10**5)]


class Imprint(nn.Module):
    """x -> x + out(act(bins(255 x))): the block of Robbing the Fed (Fowl et al. 2022, section 3), joined by addition."""

    def __init__(self, input_shape: Shape, bins: int, *, sparse: bool) -> None:
        super().__init__()
        self.sparse = sparse
        self.bins, self.out = nn.Linear(prod(input_shape), bins), nn.Linear(bins, 1, bias=False)
        _passive(self)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> the same shape."""
        hidden = self.bins(PIXEL * x.flatten(1))
        added: Tensor = self.out(hidden.clamp(0, 1) if self.sparse else hidden.relu())
        return x + added[..., None, None]


class Loki(nn.Module):
    """x -> x + out(hardtanh(bins(conv(x)))): the block of LOKI (Zhao et al. 2024), with channels of its own for each client."""

    def __init__(self, input_shape: Shape, bins: int, clients: int) -> None:
        super().__init__()
        channels = input_shape[0]
        self.conv = nn.Conv2d(channels, clients * channels, 3, padding=1, bias=False)
        self.bins, self.out = nn.Linear(clients * prod(input_shape), bins), nn.Linear(bins, 1, bias=False)
        _passive(self)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> the same shape."""
        added: Tensor = self.out(self.bins(self.conv(x).flatten(1)).clamp(0, 1))
        return x + added[..., None, None]


def _passive(block: nn.Module) -> None:
    with torch.no_grad():
        for value in block.parameters():
            value.zero_()


def imprint(input_shape: Shape, *, bins: Bins, sparse: bool = False) -> nn.Module:
    """The block of Robbing the Fed; sparse: an image falls into one bin, not into all up to its own."""
    return Imprint(input_shape, bins, sparse=sparse)


def loki(input_shape: Shape, *, bins: Bins, clients: Annotated[int, Field(ge=1, le=10**4)]) -> nn.Module:
    """The block of LOKI."""
    return Loki(input_shape, bins, clients)


FRONTS: dict[str, Callable[..., nn.Module]] = {"imprint": imprint, "loki": loki}
