"""How likely any attack is to succeed, by differential privacy alone: reconstruction robustness (Balle et al. 2022).

Somebody who knows everything but one example, and has any prior for it, succeeds with a probability of at most `blow_up` of
what the best fixed answer would (Hayes et al. 2023, Theorem 2, for Gaussian noise without sampling). What is compared is the
law of what was sent with one that does not depend on the example: the same noise around what is sent without it.
"""

import math

import torch
from pydantic import BaseModel, ConfigDict
from scipy import stats
from torch import Tensor

from client_defenses.tools.noise import Noise

PRIOR_RATES = (0.001, 0.01, 0.1)
"""Success of a blind attacker for which the limits are tabulated."""


class Success(BaseModel):
    """At most this share of attacks succeeds, for a blind success rate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    psnr: float | None
    """What counts as a success, in dB; None: any criterion that a blind attacker meets so often."""
    blind: float
    one_update: float
    all_rounds: float


class Robustness(BaseModel):
    """What Gaussian noise of a known sensitivity promises against reconstruction."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mu: float
    """Reach over noise of one release: how many standard deviations the example can move it."""
    releases_in_update: int
    """Noisy steps of one update that an example takes part in."""
    releases_in_all: int
    """The same of all rounds that the client took part in."""
    whole_batch: bool
    """Whether it protects all examples of a batch together, or each of them."""
    limits: list[Success]


def blow_up(blind: float, mu: float) -> float:
    """The most that a test of level `blind` detects of N(mu, 1) against N(0, 1): what the likelihood ratio does.

    Of several Gaussian releases together, mu is the root of the sum of their squares.
    """
    if not 0 <= blind <= 1:
        raise ValueError(f"a probability lies between 0 and 1, not {blind}")
    return float(stats.norm.cdf(stats.norm.ppf(blind) + mu))


def reach(noise: Noise) -> float | None:
    """How far an example can move what the noise is added to, in units of it; None: not bounded, or not Gaussian."""
    return noise.clip / noise.scale if noise.kind == "normal" and noise.clip is not None and noise.scale > 0 else None


def blind_rate(x: Tensor, y: Tensor, level: float) -> float:
    """The share of images (n, *shape) within a PSNR of the best fixed answer for their class: one of the images, or their mean.

    The upper end of a 95 % interval, as no image of a few thousand may be that near; still an estimate, as a better answer
    may be none of those tried. An image does not count for itself.
    """
    hits = 0
    for label in y.unique():
        flat = x[y == label].flatten(1).double()
        answers = torch.cat([flat, flat.mean(0, keepdim=True)])
        near = (torch.cdist(answers, flat).square() / flat.shape[1] <= 10 ** (-level / 10)).sum(1)
        near[: len(flat)] -= 1
        hits += int(near.max())
    return float(stats.beta.ppf(0.95, hits + 1, len(y) - hits)) if hits < len(y) else 1.0


def robustness(noise: Noise, in_update: int, in_all: int, blind: dict[float, float]) -> Robustness | None:
    """Limits for fixed blind success rates, and for levels of PSNR whose blind rate was measured; None: nothing is promised."""
    mu = reach(noise)
    if mu is None:
        return None

    def limit(level: float | None, rate: float) -> Success:
        one, every = (blow_up(rate, math.sqrt(times) * mu) for times in (in_update, in_all))
        return Success(psnr=level, blind=rate, one_update=one, all_rounds=every)

    limits = [limit(None, rate) for rate in PRIOR_RATES] + [limit(level, rate) for level, rate in blind.items()]
    return Robustness(mu=mu, releases_in_update=in_update, releases_in_all=in_all, whole_batch=not noise.summed, limits=limits)
