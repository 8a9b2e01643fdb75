"""Take what a defense added off an update first, then search in what is left as if nothing had been added."""

from dataclasses import replace

import client_defenses
from adversary.base import Facts
from adversary.denoise import LinearGaussian
from adversary.informed.variant import Variant, _by_gradients, with_labels, with_tv
from adversary.objectives import Cosine
from adversary.search.matching import Matching
from client_defenses import Defense
from client_defenses.gradient_dropout import GradientDropout

PRIOR = 1e-3
"""Total variation of a search in a denoised update: more hides what is left of it (ours)."""


def denoised(denoiser: LinearGaussian, facts: Facts) -> Variant:
    """The search in what a linear-Gaussian denoiser makes of an update, given public examples."""

    def change(attack: Matching) -> Matching:
        steps = replace(_by_gradients(attack), solved=0.0)
        attack = with_labels(replace(attack, denoisers=(denoiser,), objective=Cosine(), optimizer=steps), "rows")
        return with_tv(attack, least=PRIOR, most=PRIOR)

    why = "the cosine to the mean of clean updates given what was sent, by the principal components of public ones"
    why_not = "" if facts.enough else f"{facts.public} public examples are too few to learn from"
    return Variant(why, change, "denoised", why_not=why_not, images=True)


def against_noise(defense: Defense, facts: Facts) -> list[Variant]:
    """Of a defense whose noise has a known law."""
    law = defense.noise_law()
    if law is None:
        return []
    spread = 2**0.5 if law.kind == "laplace" else 1.0
    scale = law.scale / facts.examples if law.summed else law.scale
    return [denoised(LinearGaussian(noise=scale * spread, relative=law.relative * spread, clip=law.clip or 0.0), facts)]


def against_decoys(defense: GradientDropout, facts: Facts) -> list[Variant]:
    """Of Gradient Dropout."""
    if defense.p == 1:
        return []
    decoy = 0.0 if defense.sigma == "match" else defense.sigma
    return [denoised(LinearGaussian(kept=defense.p, decoy=decoy), facts)]


def against_zeros(facts: Facts) -> list[Variant]:
    """Of a defense that sends zeros in the place of some entries."""
    return [denoised(LinearGaussian(zeros=True), facts)]


def white_noise(defense: str, facts: Facts) -> tuple[float, float] | None:
    """(standard deviation on every entry, clipping) of a defense that adds the same noise everywhere; else None."""
    law = client_defenses.build(defense).noise_law()
    if law is None or not law.scale:
        return None
    spread = 2**0.5 if law.kind == "laplace" else 1.0
    return law.scale * spread / (facts.examples if law.summed else 1), law.clip or 0.0
