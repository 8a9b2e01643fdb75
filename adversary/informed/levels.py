"""Defenses that round what is sent to a few levels: quantize, sign."""

from adversary.base import Facts
from adversary.informed.expected import Expected
from adversary.informed.variant import Variant, first_order, with_labels, with_observer
from adversary.search.matching import Matching
from client_defenses import Defense


def variants(defense: Defense, facts: Facts) -> list[Variant]:
    """Matches through the quantiser, whose gradient is passed straight through."""

    def change(attack: Matching) -> Matching:
        return first_order(with_labels(with_observer(attack, Expected()), "rows"))

    return [Variant("matches through the quantiser, whose gradient is passed straight through", change)]
