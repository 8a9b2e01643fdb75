"""Defenses that mix examples and their labels: mixup, instahide."""

from dataclasses import replace

from adversary.base import Facts
from adversary.informed.variant import Variant
from client_defenses import Defense


def variants(defense: Defense, facts: Facts) -> list[Variant]:
    """Looks for the mixed label together with the image."""
    return [Variant("looks for the mixed label together with the image", lambda attack: replace(attack, labels="joint"))]
