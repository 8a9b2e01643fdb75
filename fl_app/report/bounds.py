"""What no attack can do, beside what those that were run did: a section of the page."""

from collections.abc import Sequence
from typing import NamedTuple

from fl_app.analysis.bounds.information import psnr
from fl_app.analysis.conditions import Condition


class Bounded(NamedTuple):
    """The bounds of a setting in sentences."""

    condition: Condition
    sentences: list[str]


def bounds(conditions: Sequence[Condition]) -> list[Bounded]:
    """Of each setting that has them, from the first of its runs."""
    found = []
    for one in conditions:
        kept = next((run.bounds for run in one.runs if run.bounds is not None), None)
        if kept is not None:
            found.append(Bounded(one, [*kept.sentences(), *_reached(one)]))
    return found


def _reached(condition: Condition) -> list[str]:
    """The least mean squared error of the attacks that were run: what a bound of it is compared with."""
    errors = [(error, one.name) for one in condition.attackers if (error := one.mean("mse")) is not None]
    if not errors:
        return []
    error, who = min(errors)
    return [f"The attacks that were run: PSNR {psnr(error):.1f} dB of the mean squared error over real images, by {who}."]
