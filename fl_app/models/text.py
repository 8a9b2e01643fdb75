"""Transformers over token ids: an encoder as BERT (Devlin et al. 2019), a decoder as GPT-2 (Radford et al. 2019).

They take ids, or what the ids stand for: word vectors with a channel that says which of them are real. So a search or a
defense that leaves the grid of words hands a model an ordinary x.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.models.layers import TextShape
from fl_app.models.transformer import Block, check_heads

Width = Annotated[int, Field(ge=2, le=4096)]
Heads = Annotated[int, Field(ge=1, le=256)]
Depth = Annotated[int, Field(ge=1, le=256)]
Pool = Literal["mean", "first", "last"]
PAD = 0
"""The id that stands behind the end of a sentence."""
WORD, PLACE = 0.05, 0.02
"""Standard deviations of a new table's entries; 0.05 is that of BERT's trained words (a mean norm of 1.4 at width 768)."""
PUBLIC = 20190524
"""The seed of frozen tables: they are part of the architecture, as everybody knows them, and not of an experiment."""


class Frozen(nn.Module):
    """A table of vectors that is not trained: a buffer, so that it is in no update."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """(...) -> (..., dim)."""
        return F.embedding(ids, self.weight)


def table(rows: int, dim: int, std: float, *, frozen: bool) -> nn.Module:
    """A table of normal vectors: frozen ones from a constant seed, those to be trained as all other weights."""
    if frozen:
        rng = torch.Generator(device="cpu").manual_seed(PUBLIC + rows)
        return Frozen(std * torch.randn((rows, dim), generator=rng, device="cpu"))
    trained = nn.Embedding(rows, dim)
    with torch.no_grad():
        trained.weight.mul_(std)
    return trained


class TextModel(nn.Module, ABC):
    """What takes token ids, int64 (batch, length), 0 behind the end, or lifted ones, float (batch, length, dim + 1)."""

    words: nn.Module

    @property
    def table(self) -> Tensor:
        """The word vectors, (vocabulary, dim): public if they are frozen, else those that the model holds now."""
        weight = self.words.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def frozen(self) -> bool:
        """Whether the tables are part of the architecture and not of the weights."""
        return isinstance(self.words, Frozen)

    def lift(self, ids: Tensor) -> Tensor:
        """Word vectors with a last channel of 1 for words and 0 behind the end, (..., length, dim + 1)."""
        vectors: Tensor = self.words(ids)
        return torch.cat([vectors, (ids != PAD).to(vectors)[..., None]], dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        """Ids or lifted ids -> logits."""
        return self.logits(x if x.is_floating_point() else self.lift(x))

    @abstractmethod
    def logits(self, lifted: Tensor) -> Tensor:
        """(batch, length, dim + 1) -> (batch, classes)."""


class Transformer(TextModel):
    """Tables, blocks, and a linear layer on a pooled vector, or, of a language model, on each token."""

    def __init__(
        self,
        shape: TextShape,
        outputs: int,
        dim: int,
        depth: int,
        heads: int,
        pool: Pool | None,
        *,
        freeze: bool,
        post: bool,
        eps: float,
    ) -> None:
        super().__init__()
        check_heads(dim, heads)
        length, vocabulary = shape
        self.pool, self.post = pool, post
        self.words = table(vocabulary, dim, WORD, frozen=freeze)
        self.places = table(length, dim, PLACE, frozen=freeze)
        self.norm = nn.LayerNorm(dim, eps=eps)
        self.blocks = nn.ModuleList(Block(dim, heads, causal=not post, post=post, eps=eps) for _ in range(depth))
        self.head = nn.Linear(dim, outputs)

    def embedded(self, lifted: Tensor) -> Tensor:
        """What enters the first block, (batch, length, dim): words plus places, normalised in an encoder."""
        batch, length = lifted.shape[:2]
        # One row per example, so that the gradient of each is what enters the layer.
        places: Tensor = self.places(torch.arange(length, device=lifted.device).expand(batch, length))
        x = lifted[..., :-1] + places
        normed: Tensor = self.norm(x) if self.post else x
        return normed

    def hidden(self, lifted: Tensor) -> Tensor:
        """What leaves the last block, (batch, length, dim): normalised in both."""
        keep, x = lifted[..., -1] > 0.5, self.embedded(lifted)
        for block in self.blocks:
            x = block(x, keep)
        normed: Tensor = x if self.post else self.norm(x)
        return normed

    def logits(self, lifted: Tensor) -> Tensor:
        """(batch, length, dim + 1) -> (batch, classes), or (batch, vocabulary, length) of a language model."""
        x = self.hidden(lifted)
        if self.pool is None:
            words: Tensor = self.head(x)
            return words.transpose(-2, -1)
        logits: Tensor = self.head((_weights(lifted[..., -1], self.pool)[..., None] * x).sum(-2))
        return logits


def _weights(keep: Tensor, pool: Pool) -> Tensor:
    """How much of each token a pooled vector holds, (batch, length)."""
    real = (keep > 0.5).to(keep)
    if pool == "mean":
        return real / real.sum(-1, keepdim=True).clamp_min(1)
    if pool == "first":
        return (torch.arange(keep.shape[-1], device=keep.device) == 0).to(keep).expand_as(keep)
    return real * (1 - F.pad(real[..., 1:], (0, 1)))


def bert(
    input_shape: TextShape,
    num_classes: int,
    *,
    dim: Width = 128,
    depth: Depth = 4,
    heads: Heads = 4,
    pool: Literal["mean", "first"] = "mean",
    freeze: bool = True,
) -> nn.Module:
    """Encoder as BERT: words see each other, norms behind each part; freeze: word and position tables are not trained."""
    return Transformer(input_shape, num_classes, dim, depth, heads, pool, freeze=freeze, post=True, eps=1e-12)


def gpt(
    input_shape: TextShape,
    num_classes: int,
    *,
    dim: Width = 128,
    depth: Depth = 4,
    heads: Heads = 4,
    pool: Literal["last", "mean"] = "last",
    head: Literal["class", "lm"] = "class",
    freeze: bool = True,
) -> nn.Module:
    """Decoder as GPT-2: words see those before them, norms before each part; head="lm": logits of each next word."""
    outputs, pooled = (num_classes, pool) if head == "class" else (input_shape[1], None)
    return Transformer(input_shape, outputs, dim, depth, heads, pooled, freeze=freeze, post=False, eps=1e-5)
