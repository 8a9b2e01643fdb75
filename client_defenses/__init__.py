"""Defenses: one file each, all of them listed here."""

from collections.abc import Callable

from client_defenses.base import Chain, Defense, Memory
from client_defenses.none import NoDefense
from fl_app import spec

DEFENSES: dict[str, Callable[..., Defense]] = {
    "none": NoDefense,
}


def build(text: str) -> Defense:
    """`"a(x=1) + b"` -> one defense, or a chain in that order."""
    parts = [spec.build_part("defense", part, DEFENSES) for part in spec.parse(text)]
    return parts[0] if len(parts) == 1 else Chain(parts=tuple(parts))


__all__ = ["DEFENSES", "Chain", "Defense", "Memory", "build"]
