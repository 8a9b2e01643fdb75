"""The network of the diffusion denoiser: a small U-Net on an update that was folded into a square picture."""

import math
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FOLD = 4
"""Neighbours of the picture, in each direction, that become channels: the rest of the network costs a 16th of it (ours)."""


class UNet(nn.Module):
    """(n, entries) and noise levels (n,) -> the noise in it, (n, entries); two levels, each told the noise level."""

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        step = 2 * FOLD
        self.entries, self.side = entries, step * ceil(ceil(math.sqrt(entries)) / step)
        self.level = nn.Sequential(nn.Linear(2 * FOLD, width), nn.SiLU(), nn.Linear(width, 4 * width))
        self.enter = nn.Conv2d(FOLD * FOLD, width, 3, padding=1)
        self.high = nn.Conv2d(width, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.low = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.Conv2d(2 * width, width, 3, padding=1)
        self.join = nn.Conv2d(2 * width, width, 3, padding=1)
        self.leave = nn.Conv2d(width, FOLD * FOLD, 3, padding=1)
        nn.init.zeros_(self.leave.weight)
        assert self.leave.bias is not None
        nn.init.zeros_(self.leave.bias)
        # The same place is the same parameter in all updates, which convolutions alone cannot know.
        self.place = nn.Parameter(torch.zeros(1, width, self.side // FOLD, self.side // FOLD))

    def forward(self, rows: Tensor, level: Tensor) -> Tensor:
        """The predicted noise."""
        width = self.enter.out_channels
        picture = F.pad(rows, (0, self.side**2 - self.entries)).view(-1, 1, self.side, self.side)
        told = self.level(_waves(level))
        x = self.enter(F.pixel_unshuffle(picture, FOLD)) + self.place
        x = x + F.silu(self.high(F.silu(x + told[:, :width, None, None])))
        below = self.down(F.silu(x))
        below = below + F.silu(self.low(F.silu(below + told[:, width : 3 * width, None, None])))
        back = self.up(F.interpolate(F.silu(below), scale_factor=2.0))
        x = x + F.silu(self.join(torch.cat([F.silu(x), back + told[:, 3 * width :, None, None]], 1)))
        found = F.pixel_shuffle(self.leave(x), FOLD).flatten(1)
        return found[:, : self.entries]


def _waves(level: Tensor) -> Tensor:
    """A level in [0, 1] as waves of several lengths, (n, 2 FOLD)."""
    angle = level[:, None] * math.pi * 2.0 ** torch.arange(FOLD, device=level.device)
    return torch.cat([angle.sin(), angle.cos()], 1)
