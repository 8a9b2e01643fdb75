"""Defenses that replace or drop entries at random: gradient_dropout, drop_fedsgd."""

from adversary.base import Facts
from adversary.informed.variant import PRIOR, Variant, averaged, with_labels, with_objective, with_tv
from adversary.objectives import Robust
from adversary.search.matching import Matching
from client_defenses import Defense


def variants(defense: Defense, facts: Facts) -> list[Variant]:
    """Down-weights entries that do not fit; rounds on the same examples are averaged."""

    def change(attack: Matching) -> Matching:
        attack = with_labels(with_objective(attack, Robust()), "rows")
        return averaged(with_tv(attack, least=PRIOR), facts)

    return [Variant("entries that do not fit are down-weighted; rounds on the same examples are averaged", change)]
