"""Attention and blocks of transformers, for images and text.

Attention is written out, because the fused kernels have no second derivative, which gradient inversion needs.
"""

import torch
from torch import Tensor, nn

MASKED = -1e9
"""The score of what must not be seen: its weight is exactly 0, and a row of nothing else is not NaN, as it is with -inf."""


class Attention(nn.Module):
    """Multi-head self-attention over (batch, tokens, dim); `causal`: a token sees itself and those before."""

    def __init__(self, dim: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """(batch, tokens, dim) -> the same shape; only tokens where keep (batch, tokens) is True are seen."""
        return self.mixed(self.qkv(x), keep)

    def mixed(self, three: Tensor, keep: Tensor | None = None) -> Tensor:
        """Queries, keys and values (batch, tokens, 3 * dim) -> what attention makes of them, (batch, tokens, dim)."""
        batch, tokens, dim = *three.shape[:2], three.shape[2] // 3
        split = three.view(batch, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        scores = query @ key.transpose(-2, -1) * (dim // self.heads) ** -0.5
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None], MASKED)
        if self.causal:
            later = torch.ones(tokens, tokens, dtype=torch.bool, device=three.device).triu(1)
            scores = scores.masked_fill(later, MASKED)
        out: Tensor = self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, tokens, dim))
        return out


class Block(nn.Module):
    """A transformer block, normalised before its parts; `post`: behind their sums, as in BERT."""

    def __init__(self, dim: int, heads: int, *, causal: bool = False, post: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        self.post = post
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.attention = Attention(dim, heads, causal=causal)
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """(batch, tokens, dim) -> the same shape; keep as in `Attention`."""
        if self.post:
            x = self.norm1(x + self.attention(x, keep))
            x = self.norm2(x + self.mlp(x))
        else:
            x = x + self.attention(self.norm1(x), keep)
            x = x + self.mlp(self.norm2(x))
        return x


def check_heads(dim: int, heads: int) -> None:
    """Refuse heads that do not share the width evenly."""
    if dim % heads:
        raise ValueError(f"dim={dim} is not a multiple of heads={heads}")
