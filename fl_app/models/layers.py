"""Layers that several model families share."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]
"""(channels, height, width); of a row of a table (floats,), which only flat models take."""
TextShape = tuple[int, int]
"""(length, vocabulary) of token ids, which only text models take: the shape of their one-hot vectors."""
Activation = Literal["relu", "sigmoid"]
Norm = Literal["batch", "group", "none"]


class Normalize(nn.Module):
    """(x - mean) / std by channel, as the first layer, so that clients, attacks and metrics all work on pixels in [0, 1].

    Of rows each float is a channel.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, flat: bool = False) -> None:
        super().__init__()
        shape = (-1,) if flat else (-1, 1, 1)
        self.register_buffer("mean", torch.tensor(mean).view(shape), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) or (batch, floats) -> the same shape."""
        return (x - self.mean) / self.std


def activation_layer(name: Activation) -> nn.Module:
    """ReLU never works in place here: torch.func and double backward need the input."""
    return nn.Sigmoid() if name == "sigmoid" else nn.ReLU()


def norm_layer(name: Norm, channels: int) -> nn.Module:
    """BatchNorm uses the statistics of the batch in training and evaluation alike.

    Running statistics would be state beside the parameters that clients have to send: a leak of its own.
    """
    if name == "batch":
        return nn.BatchNorm2d(channels, track_running_stats=False)
    if name == "group":
        return nn.GroupNorm(min(32, channels // 2), channels)
    return nn.Identity()
