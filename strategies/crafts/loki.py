"""LOKI (Zhao et al., IEEE S&P 2024): a convolution of its own for each client keeps images apart in any sum of updates."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from fl_app.core.local import Tensors
from strategies.crafts.base import Choice, Craft, Scene, alternating, brightness, edges


@dataclass(frozen=True, kw_only=True)
class Loki(Craft):
    """LOKI: each client's images enter columns of their own, so that the sum over clients and local steps gives each away."""

    readout: ClassVar[str] = "loki"
    chooses: ClassVar[tuple[Choice, ...]] = ("weights", "architecture")
    bins: Annotated[int, Field(ge=2, le=10**5)] = 512
    """Alone in its bin is a share (1 - 1 / bins)^(examples - 1) of a client's images."""
    scale: Annotated[float, Field(gt=0, le=10**5)] = 500.0
    """What a client's kernels multiply pixels by: local steps change these kernels little beside it."""
    gain: Annotated[float, Field(gt=0, le=1)] = 0.01
    """The most that the block adds to a pixel."""

    def front(self, clients: int) -> str:
        """The block, with channels for all clients."""
        return f"loki(bins={self.bins}, clients={clients})"

    def weights(self, honest: Tensors, server_round: int, scene: Scene) -> Tensors:
        """Bins that measure the brightness of whichever client's channels are not zero."""
        ends = edges(brightness(scene.public), self.bins)
        slope = 1 / (ends[1:] - ends[:-1])
        rows, pixels = honest["front.bins.weight"], scene.public[0].numel()
        made = {
            "front.bins.weight": (slope / (self.scale * pixels))[:, None].expand_as(rows),
            "front.bins.bias": -slope * ends[:-1],
            "front.out.weight": alternating(self.bins, self.gain),
        }
        return {name: value.to(honest[name]).contiguous() for name, value in made.items()}

    def own(self, honest: Tensors, client: int, scene: Scene) -> Tensors:
        """Kernels that pass the image on in this client's channels, and nothing in the others'."""
        kernels = torch.zeros_like(honest["front.conv.weight"])
        channels = kernels.shape[1]
        for channel in range(channels):
            kernels[client * channels + channel, channel, 1, 1] = self.scale
        return {"front.conv.weight": kernels}
