"""BiDO: its penalty is a public function of the batch, so an attacker differentiates it too."""

from dataclasses import dataclass

from adversary.base import AttackError, Facts
from adversary.informed.expected import granted, parts_of
from adversary.informed.variant import Variant, with_observer
from adversary.search.observers import Observer
from client_defenses.bido import BiDO
from fl_app.core.local import Gradient
from fl_app.core.observation import Observation


@dataclass(frozen=True, kw_only=True)
class Penalised(Observer):
    """The gradient of BiDO's penalised loss."""

    def gradient(self, gradient: Gradient, seen: Observation) -> Gradient:
        """The gradient that the client took."""
        known = [part for part in parts_of(granted(seen, "the observer 'penalised'")) if isinstance(part, BiDO)]
        if not known:
            raise AttackError("the observer 'penalised' is for bido, which is not in the granted defense")
        return known[0].differentiable_gradient


def variants(defense: BiDO, facts: Facts) -> list[Variant]:
    """Matches through the penalised loss, a public function of the batch."""
    why = "matches through the penalised loss, a public function of the batch"
    lacking = "" if facts.examples >= 2 else "there is something to know only from 2 examples per batch on"
    return [Variant(why, lambda attack: with_observer(attack, Penalised()), why_not=lacking)]
