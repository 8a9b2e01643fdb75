"""Robbing the Fed (Fowl et al., ICLR 2022): a block whose rows all measure the same, with a ladder of cut-offs."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fl_app.core.local import LocalRule, Tensors
from strategies.crafts.base import Choice, Craft, CraftError, Scene, alternating, edges

PIXEL = 255.0
"""What the block multiplies pixels by (`fl_app.models.fronts`)."""


@dataclass(frozen=True, kw_only=True)
class Imprint(Craft):
    """Robbing the Fed: bins by brightness in front of the model; an image that is alone in its bin is read off exactly."""

    readout: ClassVar[str] = "imprint"
    chooses: ClassVar[tuple[Choice, ...]] = ("weights", "architecture")
    bins: Annotated[int, Field(ge=4, le=10**5)] = 1000
    """Alone in its bin is a share (1 - views / bins)^(examples - 1) of the images, in each view."""
    sparse: bool = False
    """An image moves one bin alone, not all up to its own: needed for several local steps (section 4.3)."""
    views: Literal[1, 2] = 2
    """Into how many brightnesses the bins are divided, that of the image and that of a half of it (ours; the paper has one):
    an image that shares its bin in one view is seldom not alone in the other."""
    gain: Annotated[float, Field(gt=0, le=1)] = 0.01
    """The most that the block adds to a pixel."""

    def front(self, clients: int) -> str:
        """The block, the same for all clients."""
        return f"imprint(bins={self.bins}, sparse={self.sparse})"

    def check(self, rule: LocalRule) -> None:
        """Differences of rows are exact for one gradient alone."""
        if rule.steps > 1 and not self.sparse:
            raise CraftError("several local steps blur the differences of imprint's rows: use imprint(sparse=True) or loki")

    def weights(self, honest: Tensors, server_round: int, scene: Scene) -> Tensors:
        """Rows that measure a brightness, cut off at the quantiles of public images."""
        x = scene.public.flatten(1).double()
        looks = _looks(x.shape[1])[: self.views]
        rows, bias = [], []
        for place, look in enumerate(looks):
            cuts = edges(x @ look, self.bins // self.views + (place < self.bins % self.views))
            slope = 1 / (cuts[1:] - cuts[:-1]) if self.sparse else (2 / (cuts[-1] - cuts[0])).expand(len(cuts) - 1)
            rows.append(slope[:, None] * look / PIXEL)
            bias.append(-slope * cuts[:-1])
        made = {
            "front.bins.weight": torch.cat(rows),
            "front.bins.bias": torch.cat(bias),
            "front.out.weight": alternating(self.bins, self.gain),
        }
        return {name: value.to(honest[name]) for name, value in made.items()}


def _looks(pixels: int) -> Tensor:
    """The brightness of the whole image, and that of the first half of its pixels, (2, pixels)."""
    whole = torch.full((pixels,), 1 / pixels, dtype=torch.float64)
    return torch.stack([whole, whole * 2 * (torch.arange(pixels) < pixels // 2)])
