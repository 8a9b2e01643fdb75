"""Defenses that add noise to all that is sent: dp_gaussian, dp_laplace, dp_sgd, ppfa."""

from adversary.base import Facts
from adversary.informed.variant import Variant, noise_proof
from client_defenses import Defense


def variants(defense: Defense, facts: Facts) -> list[Variant]:
    """Scale-free objective and labels, a stronger prior; rounds on the same examples are averaged."""
    return [noise_proof(facts)._replace(name="")]
