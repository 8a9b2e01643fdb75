"""A small vision transformer (Dosovitskiy et al. 2021).

Attention is written out, because the fused kernels have no second derivative, which gradient inversion needs.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from fl_app.models.layers import Shape

Size = Annotated[int, Field(ge=1, le=4096)]
Depth = Annotated[int, Field(ge=1, le=256)]


class Attention(nn.Module):
    """Multi-head self-attention over (batch, tokens, dim)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim) -> the same shape."""
        batch, tokens, dim = x.shape
        split = self.qkv(x).view(batch, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        weights = (query @ key.transpose(-2, -1) * (dim // self.heads) ** -0.5).softmax(-1)
        out: Tensor = self.out((weights @ value).transpose(1, 2).reshape(batch, tokens, dim))
        return out


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim) -> the same shape."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


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
    if dim % heads:
        raise ValueError(f"dim={dim} is not a multiple of heads={heads}")
    return VisionTransformer(input_shape, num_classes, patch, dim, depth, heads)
