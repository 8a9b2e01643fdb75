"""Whether a condition holds: no attacker's mean is beyond a threshold, and the attack was strong enough to tell."""

from typing import NamedTuple

from fl_app.analysis.conditions import Condition, floors_of
from fl_app.analysis.findings import Finding, findings_of
from fl_app.analysis.limits import limits_of
from fl_app.scoring.score import summarize

LEAKING = ("fails", "not attacked")
"""Verdicts on undefended updates from which a defense can be judged, or about which nothing is known."""


class Verdict(NamedTuple):
    """Whether a condition holds, and by which measure and whom it fails."""

    word: str
    """'fails', 'holds', 'holds (naive only)', 'not decided' or 'not attacked'."""
    reasons: list[str]

    @property
    def fails(self) -> bool:
        """Whether an attacker got beyond a threshold."""
        return self.word == "fails"

    @property
    def holds(self) -> bool:
        """Whether it was attacked and nobody got beyond a threshold."""
        return self.word.startswith("holds")


def verdict_of(condition: Condition) -> Verdict:
    """A condition fails if any attacker's mean is beyond any threshold."""
    limits = limits_of(condition.measures)
    found = [one for attacker in condition.attackers for one in findings_of(attacker, limits)]
    if not found:
        return Verdict("not attacked", [])
    furthest: dict[str, Finding] = {}
    for one in sorted((one for one in found if one.beaten), key=lambda one: -one.excess):
        furthest.setdefault(one.metric, one)
    if furthest:
        return Verdict("fails", [_reason(furthest[metric]) for metric in condition.measures if metric in furthest])
    if weak := _too_weak(condition):
        return Verdict("not decided", [f"the attack is too weak: {reason}" for reason in weak])
    return Verdict("holds" if condition.informed() or condition.undefended else "holds (naive only)", [])


def _too_weak(condition: Condition) -> list[str]:
    """Why nothing follows from an attack that stays within the limits; empty if it could have told."""
    found, worst = [], condition.worst("psnr")
    floor = summarize(floors_of([condition]).get("class mean", []), "psnr").mean
    reached = worst.mean("psnr") if worst is not None else None
    if floor is not None and reached is not None and reached < floor:
        text = condition.measures["psnr"].text
        found.append(f"{text(reached)} dB is below the {text(floor)} dB of the mean image of the class")
    if condition.plain is not None and not condition.undefended and verdict_of(condition.plain).word not in LEAKING:
        found.append("undefended updates stay within the limits, too")
    return found


def _reason(one: Finding) -> str:
    measure = one.measure
    return f"{measure.title} {measure.text(one.value)} {one.sign} {one.threshold:g} ({one.attacker.name})"


def nearly_fails(condition: Condition) -> bool:
    """Whether the interval of any attacker reaches beyond a threshold."""
    found = [one for each in condition.attackers for one in findings_of(each, limits_of(condition.measures))]
    return any(one.measure.leaks(end) for one in found for end in one.interval or ())
