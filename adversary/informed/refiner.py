"""Refiner (its section 4.4 and Appendix M, and its noise-blended start): what an informed attacker can use."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

import client_defenses
from adversary.base import AttackError, Facts, Guess
from adversary.informed.expected import parts_of
from adversary.informed.noise import NoiseLaw
from adversary.informed.variant import Variant, most_likely, with_objective, with_observer, with_tv
from adversary.objectives import Cosine, Shell
from adversary.priors import Penalty, Prior, Scene
from adversary.search.matching import Matching
from adversary.search.observers import Observer
from adversary.spaces import Blended, Words
from client_defenses.refiner import Refiner
from client_defenses.tools import evaluator as evaluation
from fl_app.core.observation import Observation, Task

LEAST = 3e-4
"""The most total variation in a match whose result is smoothed afterwards (ours, chosen on 8 MNIST images of seed 1)."""
SEEN_NOISE = 1e-3
"""Weight of what D takes for noise (ours, chosen on the same images: 0.01 was no better)."""

MATCH = NoiseLaw(relative=0.1)
"""How far the robust data may be from the blend, as a share of each tensor's gradient (ours: 0.03 gave as much on 4 digits)."""


@dataclass(frozen=True, kw_only=True)
class Unblend(Observer):
    """Takes the share of uniform noise that the defense blended in out of a reconstruction, then smooths it.

    What gradient matching finds under Refiner is the robust data, which do not move far from (1 - alpha) x + alpha U(0, 1).
    """

    alpha: Annotated[float, Field(gt=0, lt=1)]

    def clean(self, guess: Guess, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """The images behind the robust data."""
        return guess._replace(x=cleaned(guess.x, self.alpha))


@dataclass(frozen=True, kw_only=True)
class NoiseShare(Prior):
    """How much of a reconstruction the clients' evaluation network D takes for noise: true images have D near 0."""

    evaluator: str = ""
    """The network, by its file."""

    def bind(self, scene: Scene) -> Penalty:
        """D's mean over the examples of a reconstruction."""
        if not self.evaluator:
            raise AttackError("the prior noise needs evaluator='FILE': make one with thorns train-evaluator")
        device = next(iter(scene.targets[0][0].params.values())).device
        network = evaluation.load(self.evaluator, device)
        return lambda x: self.weight * network(x.flatten(0, 2)).view(x.shape[:3]).mean(-1)


def variants(defense: Refiner, facts: Facts) -> list[Variant]:
    """Looks for image and blended noise together; or takes the noise out later, asks the clients' D, solves |g* - g| = eps."""
    evaluator = facts.evaluator or defense.evaluator

    def unblended(attack: Matching) -> Matching:
        if isinstance(attack.space, Words):
            return replace(attack, space=replace(attack.space, blend=defense.alpha if defense.alpha < 1 else 0.0))
        attack = with_tv(with_objective(attack, Cosine()), most=LEAST)
        return with_observer(attack, Unblend(alpha=defense.alpha)) if 0 < defense.alpha < 1 else attack

    def asks_d(attack: Matching) -> Matching:
        attack = unblended(attack)
        return replace(attack, priors=(*attack.priors, NoiseShare(weight=SEEN_NOISE, evaluator=evaluator)))

    why = "looks for the image and the noise blended into it together, given how public images vary"
    apart = [] if not 0 < defense.alpha < 1 else [most_likely(MATCH, facts, why, Blended(alpha=defense.alpha))]
    return [
        *apart,
        Variant(
            "takes the blended noise, of text the mean word, out of the reconstruction, and smooths images",
            unblended,
            "unblend",
            why_not="" if defense.alpha < 1 else "with alpha=1 the start holds nothing of the image",
        ),
        Variant(
            "also keeps the reconstruction from what the clients' evaluation network D calls noise",
            asks_d,
            "knows D",
            grants=("defense", "evaluator"),
            why_not="" if evaluator else "the client's evaluation network is not at hand",
        ),
        Variant(
            "solves |g* - g| = eps, the smoothest image on the edge of what the projection allows",
            lambda attack: attack if defense.eps is None else with_objective(attack, Shell(eps=defense.eps)),
            "shell",
            why_not="" if defense.eps is not None else "eps is not set in the defense",
        ),
    ]


def blended_share(defense: str) -> float:
    """The share of random words or noise that refiner, if it is in the spec of a defense, blends into examples; else 0."""
    known = [part.alpha for part in parts_of(client_defenses.build(defense)) if isinstance(part, Refiner)]
    return known[0] if known and known[0] < 1 else 0.0


def unblend(x: Tensor, alpha: float) -> Tensor:
    """The images behind robust data (..., *shape): unbiased, with the noise left."""
    if not 0 <= alpha < 1:
        raise ValueError(f"with alpha={alpha} the start holds nothing of the image; it must be in [0, 1)")
    return ((x - alpha / 2) / (1 - alpha)).clamp(0, 1)


def cleaned(x: Tensor, alpha: float) -> Tensor:
    """Images (..., channels, height, width) without the noise that was blended in: as `unblend`, then total variation.

    The weight of the smoothing is the standard deviation of what noise is left, alpha / (1 - alpha) / sqrt(12).
    """
    from skimage.restoration import denoise_tv_chambolle  # brings scipy.stats: a second, for this one function

    # Not yet clamped: cutting off the noise below 0 would leave a mean that is too high.
    images = ((x - alpha / 2) / (1 - alpha)).flatten(0, -4)
    weight = alpha / (1 - alpha) / 12**0.5
    smooth = [denoise_tv_chambolle(one.cpu().numpy(), weight=weight, channel_axis=0) for one in images]  # type: ignore[no-untyped-call]
    return torch.stack([torch.from_numpy(one) for one in smooth]).to(x).view_as(x).clamp(0, 1)
