"""What enters a linear layer lies in the row space of its gradient: the span test of DAGER (Petrov et al. 2024, section 4)."""

from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from adversary.base import AttackError
from adversary.text.bag_of_words import Select
from fl_app.core.local import Tensors
from fl_app.models.text import Transformer
from fl_app.models.transformer import Block

ATTENTION, BEHIND = "blocks.0.attention.qkv", "blocks.0.mlp.0"
"""Layers whose inputs are words alone, and words among the others of their sentence."""
ROOM = 4
"""Dimensions outside of the span that a test needs at least (ours): a random vector is as far from it then."""
NOISE = (0.56, -0.95, 1.82, 1.43)
"""Singular values above this polynomial in rows / columns, times their median, are no noise (Gavish and Donoho 2014)."""


class Span(NamedTuple):
    """The inputs of a layer, each with a last entry of sqrt(dim), lie where `outside` (1 + dim - rank, 1 + dim) is zero.

    That entry goes with the gradient of the bias (ours). Without it a norm layer that is as it was made lets b@j in wherever
    a@i, a@j and b@i are true words at places: their vectors are dependent but for their lengths.
    """

    outside: Tensor
    rank: int

    def distances(self, vectors: Tensor) -> Tensor:
        """How far the directions of vectors (..., dim) are from the span, in [0, 1]: (...)."""
        far: Tensor = (F.normalize(F.pad(vectors, (0, 1), value=_last(vectors)), dim=-1) @ self.outside.T).norm(dim=-1)
        return far


def span_of(gradient: Tensors, layer: str, select: Select, rtol: float) -> Span | None:
    """The span of what enters a linear layer of a name; None where it leaves no room for a test."""
    weight = gradient.get(f"{layer}.weight")
    if weight is None:
        raise AttackError(f"the update has no gradient of {layer}, which tells the words")
    if not bool(weight.any()):
        raise AttackError(f"the gradient of {layer} is zero and tells nothing")
    # Its rows are sums of the inputs, so that its right singular vectors span these.
    both = torch.cat([weight, _last(weight) * gradient[f"{layer}.bias"][:, None]], dim=1)
    _, sizes, vectors = torch.linalg.svd(both.double(), full_matrices=False)
    if select == "threshold":
        rank = int((sizes > rtol * sizes[0]).sum())
    else:
        rank = max(1, int((sizes > noise_factor(both.shape) * sizes.median()).sum()))
    if rank == 0 or rank > len(sizes) - ROOM:
        return None
    return Span(vectors[rank:].to(weight), rank)


def noise_factor(shape: torch.Size) -> float:
    """Times the median singular value of a matrix (rows, columns) up to which one is noise."""
    share, factor = shape[1] / shape[0], 0.0
    for coefficient in NOISE:
        factor = factor * share + coefficient
    return factor


def _last(vectors: Tensor) -> float:
    return float(vectors.shape[-1] ** 0.5)


class First(NamedTuple):
    """The first block of a transformer, as words come into it."""

    network: Transformer
    blend: float = 0.0
    """Share of random words that a defense blended in: a word is the rest of itself, and so much of a mean word (ours)."""
    words: Tensor | None = None
    """The ids that stand for words, which alone are blended."""

    @property
    def block(self) -> Block:
        """The block."""
        return cast(Block, self.network.blocks[0])

    def stream(self, ids: Tensor, places: Tensor) -> Tensor:
        """Words at places, both (...), as the block is given them: (..., dim)."""
        vectors = self.network.table[ids]
        if self.blend and self.words is not None:
            mixed = (1 - self.blend) * vectors + self.blend * self.network.table[self.words].mean(0)
            vectors = torch.where(torch.isin(ids, self.words)[..., None], mixed, vectors)
        return self._placed(vectors, places)

    def mean(self, places: Tensor) -> Tensor:
        """The mean word at places (...), as the block is given it: (..., dim)."""
        return self._placed(self.network.table.mean(0), places)

    def _placed(self, vectors: Tensor, places: Tensor) -> Tensor:
        x: Tensor = vectors + self.network.places(places)
        normed: Tensor = self.network.norm(x) if self.network.post else x
        return normed

    def entering(self, stream: Tensor) -> Tensor:
        """What enters its attention."""
        normed: Tensor = stream if self.network.post else self.block.norm1(stream)
        return normed

    def behind(self, stream: Tensor, three: Tensor) -> Tensor:
        """What enters its second half, given queries, keys and values (n, places, 3 * dim) of whole sentences."""
        return self.after(stream + self.block.attention.mixed(three))

    def after(self, x: Tensor) -> Tensor:
        """The same, of words with what attention adds to them, (..., dim)."""
        normed: Tensor = self.block.norm1(x) if self.network.post else self.block.norm2(x)
        return normed
