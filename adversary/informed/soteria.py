"""Soteria: what it hides is in one layer's weight alone."""

from adversary.base import Facts
from adversary.informed.variant import Variant, with_objective
from adversary.objectives import Ignoring
from client_defenses.soteria import Soteria


def variants(defense: Soteria, facts: Facts) -> list[Variant]:
    """Leaves the defended layer out of the match."""
    return [
        Variant(
            "leaves the defended layer out of the match",
            lambda attack: with_objective(attack, Ignoring(objective=attack.objective, layers=defense.muted)),
        )
    ]
