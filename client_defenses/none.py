"""No defense: the baseline that every other one is compared with."""

from dataclasses import dataclass

from client_defenses.base import Defense


@dataclass(frozen=True, kw_only=True)
class NoDefense(Defense):
    """Sends the update as it is."""
