"""Defenses that mix examples and their labels: mixup, instahide."""

from dataclasses import replace

from adversary.base import Facts
from adversary.informed.variant import Variant
from client_defenses import Defense


def variants(defense: Defense, facts: Facts) -> list[Variant]:
    """Looks for the mixed label together with the image."""
    alone = "a batch of one is not mixed, so its label is read off the update as ever" if facts.examples == 1 else ""
    joint = Variant("looks for the mixed label together with the image", lambda attack: replace(attack, labels="joint"))
    return [joint._replace(why_not=alone)]
