"""The leakage gate: whether an attack on a run, sweep or app beats a threshold.

Exit codes: 0 no attack beats a threshold, 1 one does, 2 it cannot be judged. What was not measured never passes.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from fl_app.analysis.attackers import Attacker
from fl_app.analysis.conditions import conditions_of
from fl_app.analysis.findings import Finding, findings_of, who
from fl_app.analysis.limits import Limits, of_examples
from fl_app.analysis.results import AttackResult, CellResult, Study
from fl_app.analysis.verdict import UNDECIDED, verdict_of
from fl_app.scoring.base import Metric
from fl_app.store.captures import Captures
from fl_app.store.files import RunError

PASSED, LEAK, UNJUDGED = 0, 1, 2
OTHERS = {"cells": "rows of a table", "rouge1": "text"}
"""A threshold that is for no images -> what it is for."""


class Judged(NamedTuple):
    """A finding and the cell that it is about."""

    cell: str
    finding: Finding

    def words(self) -> str:
        """The finding in one line."""
        return f"'{self.cell}': {self.finding.words()}"  # in quotes: a run may be called leak


@dataclass(frozen=True)
class Ruling:
    """What the gate says."""

    findings: list[Judged] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    """What should have been judged and could not be."""
    notes: list[str] = field(default_factory=list)

    @property
    def leaks(self) -> list[Judged]:
        """The thresholds that are beaten, the furthest beyond first."""
        return sorted((one for one in self.findings if one.finding.beaten), key=lambda one: -one.finding.excess)

    @property
    def code(self) -> int:
        """The exit code: a leak is one whatever else could not be judged."""
        return LEAK if self.leaks else UNJUDGED if self.doubts or not self.findings else PASSED

    def line(self) -> str:
        """The ruling in one line."""
        told = [one.words() for one in self.leaks] or self.doubts or ["there is no scored target"]
        more = f"; {len(told) - 1} more, see --json" if len(told) > 1 else ""
        if self.code != PASSED:
            return f"{'LEAK' if self.leaks else 'CANNOT JUDGE'} {told[0]}{more}"
        nearest = max(self.findings, key=lambda one: one.finding.excess)
        attacks = len({(one.cell, one.finding.attacker.parts[0].folder) for one in self.findings})
        return f"PASSED {attacks} attack{'s' * (attacks > 1)} judged; nearest to its threshold: {nearest.words()}"

    def add(self, other: "Ruling") -> None:
        """Take in what another attack or cell came to."""
        self.findings.extend(other.findings)
        self.doubts.extend(other.doubts)
        self.notes.extend(other.notes)

    def as_json(self) -> dict[str, Any]:
        """The ruling for machines."""
        names = {PASSED: "passed", LEAK: "leak", UNJUDGED: "unjudged"}
        about = {"verdict": names[self.code], "line": self.line(), "doubts": self.doubts, "notes": self.notes}
        return {**about, "findings": [{"cell": one.cell, **one.finding.as_json()} for one in self.findings]}


def judge_attack(cell: str, attack: AttackResult, limits: Limits, *, worst: bool = False) -> Ruling:
    """Hold one attack against the thresholds: its mean over targets, or with `worst` its best success on a single one.

    Of an attack with members both are judged, what it answered and the worst of them on each target by truth.
    """
    attacker = Attacker([attack])
    if attacker.failed == len(attacker.targets):
        reason = next((one.reason for one in attacker.targets), "it has no targets")
        return Ruling(doubts=[f"'{cell}': {who(attacker)}: none of {attacker.failed} targets was scored: {reason}"])
    found = findings_of(attacker, limits, single=worst)
    answered = {one.metric: one.value for one in found}
    for view in attack.views[1:]:
        members = findings_of(Attacker([view]), limits, single=worst)
        found += [one._replace(answered=answered.get(one.metric)) for one in members]
    ruling = Ruling([Judged(cell, one) for one in found])
    fitting = of_examples(limits, attacker.scored)
    what = next((words for name, words in OTHERS.items() if name in fitting), "")
    if what and (left := limits.keys() - fitting.keys()):
        ruling.notes.append(f"'{cell}': {', '.join(sorted(left))} say nothing of {what} and are not judged")
    if not fitting and not attack.question:
        ruling.doubts.append(f"'{cell}': every threshold for such examples is off: there is nothing to judge")
    for name, metrics in fitting.items():
        if not any(one.question == attack.question.partition(":")[0] for one in metrics.values()):
            continue  # it was asked something else
        if not any(one.metric in metrics for one in found):
            reasons = (why for one in attacker.targets if (why := one.unavailable.get(next(iter(metrics)))))
            ruling.doubts.append(
                f"'{cell}': {who(attacker)}: {name} was not scored on any target ({next(reasons, 'it has no value')}): "
                f"attack again with it, or leave it out with --limit {name}=off"
            )
    return ruling


def judge(
    study: Study, limits: Limits, *, attacks: Collection[str] = (), cells: Sequence[str] = (), worst: bool = False
) -> Ruling:
    """Judge the scored attacks of a run or sweep: those asked for as `attacks`, or all, on the cells that match `cells`."""
    judged = chosen(study, cells)
    whole = Ruling()
    if not cells and len(judged) < len(study.cells):
        whole.notes.append("undefended cells are not judged beside others; --cell judges what it names")
    for cell in judged:
        whole.add(_gaps(cell, attacks))
        for attack in wanted(cell, attacks):
            whole.add(judge_attack(cell.name, attack, limits, worst=worst))
    whole.doubts.extend(_undecided(study, judged, limits, attacks))
    if not whole.findings and any(one.question for cell in judged for one in cell.attacks):
        whole.doubts.append("no reconstruction was scored; --tpr-at-fpr judges membership attacks")
    return whole


def _undecided(study: Study, judged: Sequence[CellResult], limits: Limits, attacks: Collection[str]) -> list[str]:
    """Settings within the limits of which that says nothing, and why, in the words of the report."""
    names, found = {cell.name for cell in judged}, []
    for condition in conditions_of(study.cells, unfinished=True):
        if any(cell.name in names for cell in condition.cells):
            verdict = verdict_of(condition.only(attacks), limits)
            found += [f"{condition.label}: {verdict.words}: {why}" for why in verdict.reasons if verdict.word == UNDECIDED]
    return found


def chosen(study: Study, cells: Sequence[str]) -> list[CellResult]:
    """The cells whose names match a pattern (`prune*`), without one all but a sweep's undefended baseline."""
    for pattern in cells:
        if not any(fnmatchcase(cell.name, pattern) for cell in study.cells):
            names = ", ".join(cell.name for cell in study.cells[:10])
            raise RunError(f"no cell of {study.path} is named {pattern!r}; there are: {names}")
    if cells:
        return [cell for cell in study.cells if any(fnmatchcase(cell.name, pattern) for pattern in cells)]
    return [cell for cell in study.cells if cell.varied.get("defense") != "none"] or study.cells


def wanted(cell: CellResult, attacks: Collection[str]) -> list[AttackResult]:
    """The scored attacks on a cell that were asked for by name, or all."""
    return [one for one in cell.attacks if not attacks or one.asked in attacks]


def _gaps(cell: CellResult, attacks: Collection[str]) -> Ruling:
    """What is missing of a cell, and what is there but was not attacked."""
    found, name, run = wanted(cell, attacks), cell.name, cell.attacked
    doubts = [] if cell.failed is None else [f"'{name}': the cell failed: {cell.failed}"]
    doubts += run.problems if run else []
    missing = [text for text in attacks if text not in [one.asked for one in found]]
    if missing or not found:
        words = f"`thorns attack {run.path if run else 'RUN'} --attack {(missing or ['SPEC'])[0]!r}`"
        doubts.append(f"'{name}': no scored attack: run {words}, or name one with --attack")
    captured = len(Captures(run.path / "captures").paths()) if run else 0
    left = [(one, captured - len(one.targets)) for one in found]
    naive = run and run.experiment.defense != "none" and found and not any("defense" in one.grants for one in found)
    notes = [f"'{name}': there was no informed attack"] if naive else []
    notes += [
        f"'{name}': {who(Attacker([one]))}: {n} of {captured} captured targets were not attacked" for one, n in left if n > 0
    ]
    return Ruling(doubts=doubts, notes=notes)


def perceptual(limits: Limits) -> bool:
    """Whether a threshold needs LPIPS."""
    metrics = [one for group in limits.values() for one in group.values()]
    return any(isinstance(one, Metric) and one.needs == "lpips" for one in metrics)
