"""Soteria: what it hides are columns of one layer's weight."""

from adversary.base import Facts
from adversary.entries import Ignoring, Masked
from adversary.informed.variant import Variant, with_objective
from client_defenses.soteria import Soteria


def variants(defense: Soteria, facts: Facts) -> list[Variant]:
    """Matches all but the pruned columns where they are the same for all examples; or leaves the defended layer out."""
    columns = Variant(
        "matches all that was sent but the pruned columns, which are zero",
        lambda attack: with_objective(attack, Masked(objective=attack.objective)),
        "columns",
        why_not="" if facts.examples == 1 or defense.masks == "batch" else "each example has columns of its own",
    )
    layer = Variant(
        "leaves the defended layer out of the match",
        lambda attack: with_objective(attack, Ignoring(objective=attack.objective, layers=defense.muted)),
        "without the layer",
    )
    return [columns, layer]
