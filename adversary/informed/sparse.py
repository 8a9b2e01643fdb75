"""Defenses that send some entries as they are and zeros for the rest: prune, mask."""

from adversary.base import Facts
from adversary.entries import Masked
from adversary.informed.variant import Variant, with_labels, with_objective
from adversary.search.matching import Matching
from client_defenses import Defense


def variants(defense: Defense, facts: Facts) -> list[Variant]:
    """Matches only the entries that were sent."""

    def change(attack: Matching) -> Matching:
        masked = attack.objective if isinstance(attack.objective, Masked) else Masked(objective=attack.objective)
        return with_labels(with_objective(attack, masked), "rows")

    return [Variant("matches only the entries that were sent", change)]
