"""How much of a text a reconstruction has: ROUGE of what people read, and what became of single tokens.

Special tokens count nowhere, except in the variant "as LAMP", which gives any guess [CLS] and [SEP] for nothing.
"""

from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fl_app.core.text import Tokens

FREQUENT = 500
"""How many of the most frequent tokens of public text are no secret; all others count as rare."""
Rouge = Literal["rouge1", "rouge2", "rougeL"]
KINDS: tuple[Rouge, ...] = ("rouge1", "rouge2", "rougeL")
PERCENT = 100


class Text(NamedTuple):
    """What ids stand for, and the tokens of public text, the most frequent first, int64 (vocabulary,)."""

    tokens: Tokens
    by_frequency: Tensor

    @property
    def rare(self) -> Tensor:
        """Which ids are rare, bool (vocabulary,)."""
        found = torch.zeros(self.tokens.size, dtype=torch.bool)
        found[self.by_frequency[FREQUENT:]] = True
        return found


def by_frequency(tokens: Tokens, public: Tensor) -> Tensor:
    """The ids that stand for text, the most frequent in public rows (n, length) first; of equals the lower id."""
    words = tokens.vocabulary.words
    counts = torch.bincount(public.flatten(), minlength=tokens.size)[words]
    return words[counts.argsort(descending=True, stable=True)]


def real(tokens: Tokens, x: Tensor) -> Tensor:
    """Which tokens stand for text, bool (..., length)."""
    special = torch.zeros(tokens.size, dtype=torch.bool)
    special[list(tokens.vocabulary.special)] = True
    return ~special[x.cpu()]


def bags(tokens: Tokens, x: Tensor) -> Tensor:
    """How often each token occurs in rows (n, length), special ones never: float (n, vocabulary)."""
    found = torch.zeros(len(x), tokens.size)
    return found.scatter_add_(1, x.cpu(), real(tokens, x).float())


def overlap(tokens: Tokens, x: Tensor, true_x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(tokens that both have, tokens of the guess, tokens of the truth) of pairs of rows (n, length): (n,) each."""
    guess, truth = bags(tokens, x), bags(tokens, true_x)
    return torch.minimum(guess, truth).sum(1), guess.sum(1), truth.sum(1)


def precision(tokens: Tokens, x: Tensor, true_x: Tensor) -> Tensor:
    """The share of the guess's tokens that the truth has, in percent; of an empty guess 0."""
    both, guess, _ = overlap(tokens, x, true_x)
    return PERCENT * both / guess.clamp_min(1)


def recall(tokens: Tokens, x: Tensor, true_x: Tensor) -> Tensor:
    """The share of the true tokens that the guess has, in percent."""
    both, _, truth = overlap(tokens, x, true_x)
    return PERCENT * both / truth.clamp_min(1)


def f1(tokens: Tokens, x: Tensor, true_x: Tensor) -> Tensor:
    """The harmonic mean of both."""
    both, guess, truth = overlap(tokens, x, true_x)
    return PERCENT * 2 * both / (guess + truth).clamp_min(1)


def position(tokens: Tokens, x: Tensor, true_x: Tensor) -> Tensor:
    """The share of the true tokens that stand at their place in the guess, in percent."""
    counted = real(tokens, true_x)
    return PERCENT * ((x.cpu() == true_x.cpu()) & counted).sum(1) / counted.sum(1).clamp_min(1)


def exact(tokens: Tokens, x: Tensor, true_x: Tensor) -> Tensor:
    """100 where the guess has all true tokens in their order and no other, else 0."""
    pairs = zip(x.cpu(), true_x.cpu(), real(tokens, x), real(tokens, true_x), strict=True)
    return PERCENT * torch.tensor([float(torch.equal(one[a], truth[b])) for one, truth, a, b in pairs])


def rare_recall(text: Text, x: Tensor, true_x: Tensor) -> Tensor | None:
    """The share of the rare true tokens of all rows that their guesses have, in percent, (n,); None if there are none."""
    rare = text.rare.float()
    truth = bags(text.tokens, true_x) * rare
    if not bool(truth.any()):
        return None
    share = torch.minimum(bags(text.tokens, x), truth).sum() / truth.sum()
    return (PERCENT * share).expand(len(x))


def rouge(tokens: Tokens, x: Tensor, true_x: Tensor, kind: Rouge, *, special: bool = False) -> Tensor:
    """ROUGE's F-measure of the decoded texts in percent, as rouge-score has it without stems; `special`: as LAMP."""
    texts = [[tokens.vocabulary.decode(row, special) for row in rows] for rows in (x, true_x)]
    return torch.tensor([PERCENT * _rouge(truth, guess)[kind] for guess, truth in zip(*texts, strict=True)])


@lru_cache(maxsize=4096)
def _rouge(truth: str, guess: str) -> dict[str, float]:
    from rouge_score.rouge_scorer import RougeScorer

    scores = RougeScorer(list(KINDS), use_stemmer=False).score(truth, guess)
    return {kind: float(scores[kind].fmeasure) for kind in KINDS}


def distances(tokens: Tokens, x: Tensor, true_x: Tensor) -> Tensor:
    """How little each guess (columns) has of each truth (rows): 1 - F1 of tokens, of equals by their places, (n, n)."""
    guess, truth = bags(tokens, x), bags(tokens, true_x)
    kept = truth.any(0)  # what no truth has is in no overlap
    both = torch.minimum(truth[:, None, kept], guess[None, :, kept]).sum(-1)
    similar = 2 * both / (truth.sum(1)[:, None] + guess.sum(1)).clamp_min(1)
    placed = ((true_x.cpu()[:, None] == x.cpu()) & real(tokens, true_x)[:, None]).float().mean(-1)
    return 1 - similar - 1e-3 * placed
