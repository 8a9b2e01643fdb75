"""How well scores tell members from others: ROC, AUC, true positives at few false ones, with exact intervals."""

from typing import NamedTuple

import torch
from scipy import stats
from torch import Tensor

RATES = (0.001, 0.01)
"""False-positive rates at which the share of members that are found is reported (Carlini et al. 2022, section 3)."""


class Share(NamedTuple):
    """k of n with its Clopper-Pearson interval."""

    k: int
    n: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """K / n."""
        return self.k / self.n


def clopper_pearson(k: int, n: int, confidence: float = 0.95) -> Share:
    """The exact two-sided interval of a probability after k of n."""
    if not 0 <= k <= n or n < 1:
        raise ValueError(f"there are no {k} of {n}")
    rest = (1 - confidence) / 2
    low = 0.0 if k == 0 else float(stats.beta.ppf(rest, k, n - k + 1))
    high = 1.0 if k == n else float(stats.beta.ppf(1 - rest, k + 1, n - k))
    return Share(k, n, low, high)


def threshold_at(others: Tensor, rate: float) -> float | None:
    """The score that at most a share `rate` of the others, (n,), lie above; None if n is too small to tell such a share."""
    allowed = int(rate * len(others) + 1e-9)
    return float(others.sort(descending=True).values[allowed]) if allowed else None


def ranks(scores: Tensor, others: Tensor) -> Tensor:
    """Of each score, (m,), the share of the others, (n,), that lie below, ties half: their mean over members is the AUC."""
    order, scores = others.sort().values, scores.contiguous()
    below, up_to = (torch.searchsorted(order, scores, right=right) for right in (False, True))
    return (below + up_to).double() / (2 * len(order))


def auc(scores: Tensor, others: Tensor) -> float:
    """The probability that a member's score lies above that of another candidate (Mann-Whitney)."""
    return float(ranks(scores, others).mean())


def curve(scores: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """(false-positive rate, true-positive rate), float64, at each threshold from the highest score down, from (0, 0)."""
    levels = torch.cat([scores, others]).unique().flip(0)
    sides = [(len(each) - torch.searchsorted(each.sort().values, levels)).double() / len(each) for each in (others, scores)]
    start = torch.zeros(1, dtype=torch.float64)
    return torch.cat([start, sides[0]]), torch.cat([start, sides[1]])


def best_threshold(scores: Tensor, others: Tensor) -> float:
    """The threshold with the largest difference of the two rates, midway between the scores above and below it."""
    levels = torch.cat([scores, others]).unique().flip(0)
    false, true = curve(scores, others)
    best = int((true - false)[1:].argmax())
    return float(levels[best : best + 2].mean())


def found_at(scores: Tensor, others: Tensor, rate: float) -> Share | None:
    """How many members lie above the threshold of a false-positive rate; None if there are too few others to tell."""
    level = threshold_at(others, rate)
    return None if level is None else clopper_pearson(int((scores > level).sum()), len(scores))
