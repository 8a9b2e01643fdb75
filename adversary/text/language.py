"""How likely a sentence is: an interpolated trigram model over token ids, counted on public text."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from fl_app.core.local import Tensors
from fl_app.core.text import PAD

SHARES = (0.15, 0.35, 0.5)
"""Of single words, pairs and triples in a probability (ours)."""


class Trigrams(NamedTuple):
    """Counts of words (vocabulary,), and of pairs and triples by their sorted numbers."""

    single: Tensor
    pairs: Tensor
    pair_counts: Tensor
    triples: Tensor
    triple_counts: Tensor

    @classmethod
    def counted(cls, x: Tensor, vocabulary: int) -> Self:
        """From rows of ids (n, length)."""
        kept = x[:, 1:] != PAD
        single = torch.bincount(x[x != PAD], minlength=vocabulary)
        pairs = (x[:, :-1] * vocabulary + x[:, 1:])[kept]
        triples = (x[:, :-2] * vocabulary**2 + x[:, 1:-1] * vocabulary + x[:, 2:])[kept[:, 1:]]
        (pair, often), (triple, how) = (torch.unique(one, return_counts=True) for one in (pairs, triples))
        return cls(single, pair, often, triple, how)

    @classmethod
    def learned(cls, kept: Tensors) -> Self | None:
        """From what was kept by name; None of nothing."""
        return cls(**{name: kept[name] for name in cls._fields}) if kept else None

    def surprise(self, ids: Tensor) -> Tensor:
        """Mean negative log-likelihood of the words behind the first of sentences (..., length), padding left out: (...)."""
        size, total = len(self.single), self.single.sum()
        one, two = ids[..., 1:], ids[..., :-1] * size + ids[..., 1:]
        three = torch.nn.functional.pad(
            ids[..., :-2] * size**2 + two[..., 1:], (1, 0), value=-1
        )  # no triple ends at the second
        before = torch.nn.functional.pad(two[..., :-1], (1, 0), value=-1)
        share = SHARES[0] * (self.single[one] + 1) / (total + size)
        share = share + SHARES[1] * _often(two, self.pairs, self.pair_counts) / self.single[ids[..., :-1]].clamp_min(1)
        seen = _often(before, self.pairs, self.pair_counts).clamp_min(1)
        share = share + SHARES[2] * _often(three, self.triples, self.triple_counts) / seen
        kept = one != PAD
        return -(share.log() * kept).sum(-1) / kept.sum(-1).clamp_min(1)


def _often(keys: Tensor, known: Tensor, counts: Tensor) -> Tensor:
    """How often numbers occurred, by the sorted ones that did."""
    if not len(known):
        return torch.zeros_like(keys)
    at = torch.searchsorted(known, keys).clamp_max(len(known) - 1)
    return counts[at] * (known[at] == keys)
