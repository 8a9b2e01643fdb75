"""Who knows that a defense blended random words into a text (Refiner, Appendix F)."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from adversary.base import Informed

if TYPE_CHECKING:
    from adversary.text.dager import Dager
    from adversary.text.tiger import Tiger

Blend = Annotated[float, Field(ge=0, lt=1)]
"""Share of random words that a defense blended in."""


def unblended(attack: "Dager | Tiger", defense: str) -> list[Informed]:
    """The attack on words as refiner, if it is in the spec of a defense, blends them."""
    from adversary.informed.refiner import blended_share  # only informed attackers know defenses

    share = blended_share(defense)
    if not share or attack.blend == share:
        return []
    return [Informed("unblend", replace(attack, blend=share), "looks for words as the defense blends them with a mean word")]
