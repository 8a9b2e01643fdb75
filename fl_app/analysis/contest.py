"""Naive and informed attackers side by side: who was worst for the defense."""

from typing import NamedTuple

from fl_app.attacking.session import Session
from fl_app.scoring.attacks import Scoring


class Contender(NamedTuple):
    """An attack as it was asked for, or the same once it knows the defense."""

    session: Session
    scoring: Scoring


def worst(contenders: list[Contender], metric: str = "psnr") -> Contender | None:
    """The attacker who was worst for the defense, by the mean of a metric; None if nobody has one."""
    means = [(one, one.scoring.table()[0][1][metric].mean) for one in contenders]
    return max(((one, mean) for one, mean in means if mean is not None), key=lambda pair: pair[1], default=(None, 0.0))[0]
