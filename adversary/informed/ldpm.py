"""LDPM: noise on all that is sent, and a class layer that tells nothing of the labels."""

from dataclasses import replace

from adversary.base import Facts
from adversary.informed.variant import PRIOR, Variant, averaged, with_objective, with_tv
from adversary.objectives import Cosine, Ignoring
from adversary.search.matching import Matching
from client_defenses import Defense


def variants(defense: Defense, facts: Facts) -> list[Variant]:
    """Leaves the class layer out and looks for the label with the image; rounds on the same examples are averaged."""

    def change(attack: Matching) -> Matching:
        attack = with_objective(attack, Ignoring(objective=Cosine(), layers=("last",)))
        attack = attack if attack.labels == "given" else replace(attack, labels="joint")
        return averaged(with_tv(attack, least=PRIOR), facts)

    return [
        Variant(
            "leaves the class layer out, looks for the label with the image; rounds on the same examples are averaged", change
        )
    ]
