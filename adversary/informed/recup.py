"""RecUP-FL: what an informed attacker can use against a perturbation that is bounded, and looks like nothing in particular."""

from adversary.base import Facts
from adversary.informed.noise import NoiseLaw
from adversary.informed.variant import Variant, most_likely, noise_proof
from client_defenses.recup import RecUP


def variants(defense: RecUP, facts: Facts) -> list[Variant]:
    """Takes what was added for noise of its known size: the most likely example of its class; or what noise changes least."""
    if not defense.eps:
        return []
    why = "the most likely example of its class, given public examples and the size of what was added"
    return [most_likely(NoiseLaw(relative=defense.eps), facts, why), noise_proof(facts)]
