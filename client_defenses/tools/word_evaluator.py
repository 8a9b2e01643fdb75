"""The evaluation network D of Refiner for text (Appendix F): how large a share of a text's words is random."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from client_defenses.tools.evaluator import (
    Evaluator,
    EvaluatorError,
    EvaluatorFacts,
    WordTable,
    fingerprint_of,
    fitted,
)
from client_defenses.tools.evaluator_networks import EvaluatorTraining
from fl_app.core.text import PAD

DEFAULTS = EvaluatorTraining(steps=800, stark=0.0)
"""Ours, about three minutes on a busy core; 1,000 steps, tried first, told shares about as well."""


def digest_of(table: Tensor) -> str:
    """A checksum of word vectors (vocabulary, dim), the same in every precision that a model may have."""
    return fingerprint_of({"words": table.detach().to(torch.bfloat16).contiguous().view(torch.int16)})


def facts_of(
    ids: Tensor, table: Tensor, special: tuple[int, ...], training: EvaluatorTraining = DEFAULTS, data: str = ""
) -> EvaluatorFacts:
    """Of a network that learns from rows of ids (n, length) under a word table (vocabulary, dim)."""
    if ids.ndim != 2 or not len(ids) or ids.is_floating_point():
        raise EvaluatorError(f"an evaluation network for text learns from rows of ids (n, length), not {tuple(ids.shape)}")
    return EvaluatorFacts(
        shape=(ids.shape[1], table.shape[1] + 1),
        training=training,
        data=data,
        images=fingerprint_of({"ids": ids}),
        table=WordTable(digest=digest_of(table), special=special),
    )


def train(facts: EvaluatorFacts, ids: Tensor, table: Tensor, on_step: Callable[[], None] = lambda: None) -> Evaluator:
    """Train on rows of public text (n, length): regression to the share of words that were replaced by random ones."""
    assert facts.table is not None
    vectors, levels, special = table.detach().float().cpu(), facts.training.levels, facts.table.special

    def drawn(chosen: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        shares = torch.randint(levels, (len(chosen), 1), generator=rng) / (levels - 1)
        mixed, share = replaced(ids[chosen], shares, special, len(vectors), rng)
        return lift(mixed, vectors), share

    return fitted(facts, len(ids), drawn, on_step)


def lift(ids: Tensor, vectors: Tensor) -> Tensor:
    """Rows of ids (n, length) as word vectors, and 1 for words and 0 behind the end: (n, length, dim + 1)."""
    return torch.cat([F.embedding(ids, vectors), (ids != PAD).to(vectors)[..., None]], dim=-1)


def replaced(
    ids: Tensor, share: Tensor | float, special: tuple[int, ...], vocabulary: int, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(rows with about a share of their words replaced by random ones, the share of each row that was), ids and (n,)."""
    words = ~torch.isin(ids, torch.tensor(special, dtype=torch.int64))
    chosen = words & (torch.rand(ids.shape, generator=rng) < share)
    mixed = torch.where(chosen, random_words(ids.shape, special, vocabulary, rng), ids)
    return mixed, chosen.sum(1) / words.sum(1).clamp_min(1)


def random_words(shape: torch.Size, special: tuple[int, ...], vocabulary: int, rng: torch.Generator) -> Tensor:
    """Uniform ids that stand for words, int64 of a shape."""
    plain = torch.ones(vocabulary, dtype=torch.bool)
    plain[list(special)] = False
    words = plain.nonzero()[:, 0]
    return words[torch.randint(len(words), shape, generator=rng)]


@torch.no_grad()
def agreement(evaluator: Evaluator, ids: Tensor, table: Tensor, rng: torch.Generator) -> float:
    """Correlation of what a network says with the true share of random words, from 0 to 1, in rows (n, length)."""
    assert evaluator.facts.table is not None
    shares = torch.randint(11, (len(ids), 1), generator=rng) / 10
    mixed, share = replaced(ids, shares, evaluator.facts.table.special, len(table), rng)
    return float(torch.corrcoef(torch.stack([evaluator(lift(mixed, table.float())), share]))[0, 1])
