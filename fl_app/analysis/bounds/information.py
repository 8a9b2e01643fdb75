"""What the noise of an update leaves to know of one example: Fisher information, and the least error that follows from it.

Two bounds for two kinds of attackers, both for one update and for somebody who knows the labels and all other examples of
the batch (who knows less does worse):

- Cramer-Rao, for unbiased attackers alone: their mean squared error at this image is at least that of the inverse Fisher
  information (Hannun et al. 2021). Whoever uses a prior is biased, and may do better.
- van Trees (the Bayesian Cramer-Rao bound), for every attacker, as a mean over images that are drawn from the prior.
"""

import math
from collections.abc import Callable

import torch
from pydantic import BaseModel, ConfigDict
from scipy import stats
from torch import Tensor

from fl_app.analysis.bounds.identifiability import STEPS
from fl_app.analysis.bounds.prior import Prior
from fl_app.analysis.bounds.sensitivity import Sensitivity, Tick, random_directions, silent

LEAST = 8
"""Draws of images from which on their spread says something."""
CONFIDENCE = 0.95
"""Of the Bayesian bound, over the draws of images by which the mean information is estimated."""


def psnr(error: float) -> float:
    """PSNR in dB of a mean squared error on a range of 1."""
    return math.inf if error == 0 else -10 * math.log10(error)


class Unbiased(BaseModel):
    """What holds at one image for unbiased attackers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    leakage: float
    """Fisher information leakage: the square root of the information's largest eigenvalue; 1 / it is the least std in any
    direction of length 1."""
    mse: float | None
    """The least mean squared error by pixel; None: no unbiased attacker has a finite one."""
    whole: bool
    """Whether it is that of the whole information, or the weaker one that follows from an estimate of its trace."""


class Bayesian(BaseModel):
    """What holds for every attacker, as a mean over a Gaussian prior."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mse: float
    """The least mean squared error by pixel."""
    blind: float
    """That of the best answer without an update: the prior's own variance, in the directions that are looked at."""
    components: int
    """Directions of the prior that are looked at, the widest first; the others count as known to the attacker."""
    draws: int
    """Images of the prior at which the information was taken."""


def unbiased(sensitivity: Sensitivity, directions: int, rng: torch.Generator, tick: Tick = silent) -> Unbiased:
    """The Cramer-Rao bound from a whitened Jacobian J, whose J' J is the Fisher information."""
    unknowns = sensitivity.unknowns
    if directions >= unknowns:
        values = sensitivity.everything(tick)
        singular = len(values) < unknowns or bool(values[-1] <= 1e-15 * unknowns * values[0])
        error = None if singular else values.square().reciprocal().mean().item()
        return Unbiased(leakage=values[0].item(), mse=error, whole=True)
    # The mean of 1 / eigenvalue is at least 1 / mean, and the mean eigenvalue needs a few random directions only.
    squares = sensitivity.gram(random_directions(directions, unknowns, rng), tick).diag()
    largest = sensitivity.lanczos(STEPS, rng, tick)[0].item()
    return Unbiased(leakage=largest, mse=1 / squares.mean().item(), whole=False)


def bayesian(
    at: Callable[[Tensor], Sensitivity], prior: Prior, draws: int, rng: torch.Generator, tick: Tick = silent
) -> Bayesian:
    """The van Trees bound; `at` gives the whitened Jacobian at an image (pixels,).

    For any matrix M the error is at least tr(V M')^2 / tr(M (I + E G) M'), with V' the prior's basis and G the information on
    its coordinates. One half of the draws chooses M = V (I + mean G)^-1, which is best, the other half estimates what stands
    below: it is linear in G, so that an upper confidence limit of its mean gives a valid bound.
    """
    if draws < LEAST:
        raise ValueError(f"the Bayesian bound needs at least {LEAST} draws, not {draws}: half of them judge its confidence")
    variances = prior.basis.square().sum(1)
    if not len(variances):  # all images of the class are the same
        return Bayesian(mse=0.0, blind=0.0, components=0, draws=draws)
    found = [at(prior.draw(rng)).gram(prior.basis, tick) for _ in range(draws)]
    chosen, judged = found[: draws // 2], found[draws // 2 :]
    identity = torch.eye(len(variances), dtype=torch.float64)
    shrink = torch.linalg.inv(identity + torch.stack(chosen).mean(0))
    below = torch.stack([(variances[:, None] * (shrink @ (identity + one) @ shrink)).diag().sum() for one in judged])
    if bool(below.std() > 1e-12 * below.mean()):
        spread = below.std().item() / math.sqrt(len(judged))
        highest = below.mean().item() + float(stats.t.ppf(CONFIDENCE, len(judged) - 1)) * spread
    else:
        highest = below.mean().item()
    error = (variances * shrink.diag()).sum().item() ** 2 / highest / len(prior.mean)
    return Bayesian(mse=error, blind=prior.blind, components=len(variances), draws=draws)
