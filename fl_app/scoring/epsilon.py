"""Lower bounds on epsilon from how often a test was right: what (epsilon, delta) the trials refute at a confidence."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from client_defenses.tools.accounting import gaussian_epsilon
from fl_app.scoring.roc import clopper_pearson

MOST = 60.0
"""The largest epsilon that is looked for; no number of trials refutes more."""


class Errors(NamedTuple):
    """How often a test of "the canary is there" was wrong: of `out` trials without it, and of `in_` with it."""

    false_positives: int
    out: int
    false_negatives: int
    in_: int

    def bounds(self, confidence: float) -> tuple[float, float]:
        """Upper bounds of both error rates that hold together at the confidence."""
        # Each fails with half of what the confidence leaves: the upper ends of two-sided intervals.
        positives = clopper_pearson(self.false_positives, self.out, confidence)
        return positives.high, clopper_pearson(self.false_negatives, self.in_, confidence).high


Bound = Callable[[Errors, float, float], float]
"""(errors, delta, confidence) -> the epsilon that they refute."""


def from_errors(errors: Errors, delta: float, confidence: float = 0.95) -> float:
    """Epsilon that the error rates refute, whatever the mechanism is (Kairouz et al. 2015; Nasr et al. 2021, section II.D)."""
    false_positive, false_negative = errors.bounds(confidence)
    found = [0.0]
    for one, other in ((false_positive, false_negative), (false_negative, false_positive)):
        if 1 - delta - other > 0:
            found.append(math.log((1 - delta - other) / one))
    return max(found)


def from_errors_gaussian(errors: Errors, delta: float, confidence: float = 0.95) -> float:
    """The same if the noise is known to be Gaussian: of the mu that the error rates refute (Nasr et al. 2023, section 4)."""
    false_positive, false_negative = errors.bounds(confidence)
    if false_positive >= 1 or false_negative >= 1:
        return 0.0
    mu = float(stats.norm.isf(false_positive) + stats.norm.isf(false_negative))
    return gaussian_epsilon(1 / mu, 1, delta) if mu > 0 else 0.0


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """How likely so many right guesses are under (epsilon, delta), with coins for canaries (Steinke et al. 2023, thm 5.2)."""
    share = 1 / (1 + math.exp(-epsilon))
    at_least = float(stats.binom.sf(right - 1, guesses, share))
    fewer = np.arange(1, right + 1)
    below = stats.binom.cdf(right - 1, guesses, share) - stats.binom.cdf(right - 1 - fewer, guesses, share)
    worst = float((below / fewer).max()) if right else 0.0
    return min(1.0, at_least + 2 * canaries * delta * worst)


def from_guesses(canaries: int, guesses: int, right: int, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon that so many right guesses in one run refute."""
    if not 0 <= right <= guesses <= canaries:
        raise ValueError(f"{right} of {guesses} guesses about {canaries} canaries cannot be right")

    def excess(epsilon: float) -> float:
        return p_value(canaries, guesses, right, epsilon, delta) - (1 - confidence)

    if not guesses or excess(0.0) >= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, MOST, xtol=1e-4)) if excess(MOST) > 0 else MOST
