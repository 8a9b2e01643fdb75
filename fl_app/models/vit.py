"""A small vision transformer (Dosovitskiy et al. 2021)."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from fl_app.models.layers import Shape
from fl_app.models.transformer import Block, check_heads

Size = Annotated[int, Field(ge=1, le=4096)]
Depth = Annotated[int, Field(ge=1, le=256)]


class VisionTransformer(nn.Module):
    """Patches, a class token, learned positions, blocks, a linear head."""

    def __init__(self, input_shape: Shape, num_classes: int, patch: int, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        tokens = (height // patch) * (width // patch) + 1
        self.embed = nn.Conv2d(channels, dim, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.position = nn.Parameter(torch.randn(1, tokens, dim) * 0.02)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> (batch, classes)."""
        patches = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.position
        logits: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits


def vit(
    input_shape: Shape, num_classes: int, *, patch: Size = 4, dim: Size = 192, depth: Depth = 6, heads: Size = 3
) -> nn.Module:
    """ViT small: 4x4 patches, six pre-norm blocks of width 192; the image side must be a multiple of the patch."""
    _, height, width = input_shape
    if height % patch or width % patch:
        raise ValueError(f"the image size {height} x {width} is not a multiple of patch={patch}")
    check_heads(dim, heads)
    return VisionTransformer(input_shape, num_classes, patch, dim, depth, heads)
