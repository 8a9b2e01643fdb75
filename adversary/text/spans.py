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

ROOM = 4
"""Dimensions outside of the span that a test needs at least (ours): a random vector is as far from it then."""
NOISE = (0.56, -0.95, 1.82, 1.43)
"""Singular values above this polynomial in rows / columns, times their median, are no noise (Gavish and Donoho 2014)."""


class Span(NamedTuple):
    """The inputs of a layer lie where `outside` (dim - rank, dim), orthonormal rows, is zero."""

    outside: Tensor
    rank: int

    def distances(self, vectors: Tensor) -> Tensor:
        """How far the directions of vectors (..., dim) are from the span, in [0, 1]: (...)."""
        far: Tensor = (F.normalize(vectors, dim=-1) @ self.outside.T).norm(dim=-1)
        return far


def span_of(gradient: Tensors, block: int, select: Select, rtol: float) -> Span | None:
    """The span of what enters a block's query, key and value at once; None where it leaves no room for a test.

    All three, because the first token of a decoder has no gradient at its query.
    """
    weight = gradient.get(f"blocks.{block}.attention.qkv.weight")
    if weight is None:
        raise AttackError(f"the update has no gradient of block {block}'s attention, which tells the words")
    # The inputs lie along the columns of the weight: its right singular vectors.
    _, sizes, vectors = torch.linalg.svd(weight.double(), full_matrices=False)
    if select == "threshold":
        rank = int((sizes > rtol * sizes[0]).sum())
    else:
        share, factor = weight.shape[1] / weight.shape[0], 0.0
        for coefficient in NOISE:
            factor = factor * share + coefficient
        rank = max(1, int((sizes > factor * sizes.median()).sum()))
    if rank == 0 or rank > len(sizes) - ROOM:
        return None
    return Span(vectors[rank:].to(weight), rank)


def words_at(network: Transformer, place: int) -> Tensor:
    """What all words are as they enter the first block's attention at a place, (vocabulary, dim)."""
    table = network.table
    places = network.places(torch.tensor([place], device=table.device))
    x = table + places
    # A word alone: neither norm looks at other places.
    entered: Tensor = network.norm(x) if network.post else cast(Block, network.blocks[0]).norm1(x)
    return entered
