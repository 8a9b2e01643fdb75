"""What a malicious server does to the weights, or to the architecture, before a round: one file each."""

from collections.abc import Callable

from fl_app.core import spec
from strategies.crafts.base import Craft, CraftError, Honest, Scene
from strategies.crafts.fishing import Fishing
from strategies.crafts.imprint import Imprint
from strategies.crafts.loki import Loki
from strategies.crafts.traps import Traps

CRAFTS: dict[str, Callable[..., Craft]] = {
    "honest": Honest,
    "fishing": Fishing,
    "imprint": Imprint,
    "loki": Loki,
    "traps": Traps,
}


def build(text: str) -> Craft:
    """`"imprint(bins=1000)"` -> a craft."""
    return spec.build_one("server", text, CRAFTS, base=Craft)


__all__ = ["CRAFTS", "Craft", "CraftError", "Scene", "build"]
