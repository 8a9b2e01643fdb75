"""Whether a condition holds: no attacker's mean is beyond a threshold, and the attack was strong enough to tell."""

from collections.abc import Sequence
from typing import NamedTuple

from fl_app.analysis.attackers import Attacker
from fl_app.analysis.attackers import worst as worst_of
from fl_app.analysis.conditions import Condition, floors_of
from fl_app.analysis.findings import Finding, findings_of
from fl_app.analysis.limits import Limits, limits_of
from fl_app.scoring.score import summarize

WEAK = "the attack is too weak"
UNDECIDED = "not decided"
BLIND = {
    "class mean": "mean image of the class",
    "class mode": "most frequent row of the class",
    "common words": "most frequent words",
}
"""The floor that an attack has to beat, of images, rows and text, and what it is."""


class Verdict(NamedTuple):
    """Whether a condition holds, and by which measure and whom it fails."""

    word: str
    """'fails', 'holds', 'holds (naive only)', 'not decided' or 'not attacked'."""
    reasons: list[str]

    @property
    def words(self) -> str:
        """The word, with what it is owed to where that is always the same."""
        return f"{self.word}: {WEAK}" if self.word == UNDECIDED else self.word

    @property
    def fails(self) -> bool:
        """Whether an attacker got beyond a threshold."""
        return self.word == "fails"

    @property
    def holds(self) -> bool:
        """Whether it was attacked by somebody strong enough, and nobody got beyond a threshold."""
        return self.word.startswith("holds")


def verdict_of(condition: Condition, limits: Limits | None = None) -> Verdict:
    """A condition fails if any attacker's mean is beyond any threshold: those of its measures, or others.

    Of an attack with members that is the mean of the worst on each target by truth: a defense is as good as its worst attacker.
    """
    limits = limits or limits_of(condition.measures)
    found = _findings(condition.attackers, limits)
    if not found:
        return Verdict("not attacked", [])
    furthest: dict[str, Finding] = {}
    for one in sorted((one for one in found if one.beaten), key=lambda one: -one.excess):
        furthest.setdefault(one.metric, one)
    if furthest:
        return Verdict("fails", [_reason(furthest[metric]) for metric in condition.measures if metric in furthest])
    if weak := _too_weak(condition, limits):
        return Verdict(UNDECIDED, weak)
    return Verdict("holds" if condition.informed() else "holds (naive only)", [])


def leaks(attackers: Sequence[Attacker], *limits: Limits) -> bool | None:
    """Whether the mean of any attacker is beyond any of these thresholds; None if nothing was measured."""
    found = [one for each in limits for one in _findings(attackers, each)]
    return any(one.beaten for one in found) if found else None


def _findings(attackers: Sequence[Attacker], limits: Limits) -> list[Finding]:
    return [one for attacker in attackers for one in findings_of(attacker, limits)]


def _too_weak(condition: Condition, limits: Limits) -> list[str]:
    """Why nothing follows from an attack that stays within the limits; empty if it could have told."""
    found, leading, plain = [], condition.leading, condition.plain
    measure = condition.measures[leading]
    able = [one for one in condition.answering if one.told_by_updates(leading, measure)]
    worst = worst_of(able, leading, measure)
    if condition.answering and not able:
        found.append("what was found is no more than the same attack finds in updates that say nothing")
    blind = floors_of([condition]) or (floors_of([plain]) if plain else {})
    name, whose = next((pair for pair in BLIND.items() if blind.get(pair[0])), ("", ""))
    floor = summarize(blind.get(name, []), leading).mean
    reached = worst.mean(leading) if worst is not None else None
    if floor is not None and reached is not None and reached < floor:
        unit = measure.unit or measure.title
        found.append(f"{measure.text(reached)} {unit} is below the {measure.text(floor)} {unit} of the {whose}")
    # Limits may be moved: an attack that gets beyond the usual ones is able to tell.
    if plain is not None and leaks(plain.attackers, limits, limits_of(condition.measures)) is False:
        found.append("undefended updates stay within the limits" + ", too" * (not condition.undefended))
    return found


def _reason(one: Finding) -> str:
    measure = one.measure
    return f"{measure.title} {measure.text(one.value)} {one.sign} {one.threshold:g} ({one.attacker.name})"


def nearly_fails(condition: Condition) -> bool:
    """Whether the interval of any attacker reaches beyond a threshold."""
    found = _findings(condition.attackers, limits_of(condition.measures))
    return any(one.told and one.measure.leaks(end) for one in found for end in one.interval or ())
