"""The leakage gate: whether an attack beats the thresholds below which the Refiner paper calls data private.

Exit codes: 0 no attack beats a threshold, 1 one does, 2 it cannot be judged. What was not measured never passes.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from fl_app.analysis import limits as paper
from fl_app.analysis.results import AttackResult, CellResult, Study
from fl_app.store.captures import Captures
from fl_app.store.files import RunError

PASSED, LEAK, UNJUDGED = 0, 1, 2


class Limit(NamedTuple):
    """A threshold that an attack beats from above (PSNR, SSIM) or from below (LPIPS)."""

    name: str
    metrics: tuple[str, ...]
    """Each of them is held against it; the paper does not say which network its LPIPS uses, so both count."""
    threshold: float
    above: bool
    unit: str = ""


LIMITS = {
    "psnr": Limit("psnr", ("psnr",), paper.PSNR, above=True, unit=" dB"),
    "ssim": Limit("ssim", ("ssim",), paper.SSIM, above=True),
    "lpips": Limit("lpips", ("lpips_alex", "lpips_vgg"), paper.LPIPS, above=False),
}
"""The privacy thresholds of the Refiner paper."""


def limits_of(thresholds: dict[str, float | None]) -> list[Limit]:
    """The usual thresholds with some changed; None takes one out."""
    for name, value in thresholds.items():
        if value is not None and not math.isfinite(value):  # nothing would ever be above nan
            raise ValueError(f"the threshold of {name} must be a finite number, not {value}")
    changed = {name: thresholds.get(name, limit.threshold) for name, limit in LIMITS.items()}
    if not any(value is not None for value in changed.values()):
        raise ValueError("every threshold is off: there is nothing to judge")
    return [LIMITS[name]._replace(threshold=value) for name, value in changed.items() if value is not None]


class Finding(NamedTuple):
    """One metric of one attack beside its threshold."""

    cell: str
    attack: AttackResult
    limit: Limit
    metric: str
    value: float
    low: float | None
    high: float | None
    n: int
    failed: int
    target: str
    """The target that the value is of; empty for the mean over all."""

    @property
    def excess(self) -> float:
        """How far beyond the threshold, as a share of it; an attack beats it if this is positive."""
        beyond = self.value - self.limit.threshold if self.limit.above else self.limit.threshold - self.value
        return beyond / (abs(self.limit.threshold) or 1.0)

    def words(self) -> str:
        """Attack, ledger, metric, value with interval, threshold, number of targets."""
        unit, sign = self.limit.unit, (">" if self.limit.above else "<") if self.excess > 0 else "against"
        what = f"worst target ({self.target})" if self.target else "mean"
        interval = "" if self.low is None or self.high is None else f" [{self.low:.3g}, {self.high:.3g}]"
        return (
            f"{self.cell}: {who(self.attack)} (granted: {self.attack.ledger}): {self.metric} {what} {self.value:.3g}{unit}"
            f"{interval} {sign} {self.limit.threshold:g}{unit}, {self.n} targets{f', {self.failed} failed' * (self.failed > 0)}"
        )

    def as_json(self) -> dict[str, Any]:
        """The same for machines."""
        attack = {key: getattr(self.attack, key) for key in ("who", "asked", "attack", "ledger")}
        value = {key: getattr(self, key) for key in ("cell", "metric", "value", "low", "high", "target", "n", "failed")}
        limit = {"threshold": self.limit.threshold, "beaten": self.excess > 0}
        return {**attack, **value, **limit, "folder": str(self.attack.folder)}


@dataclass(frozen=True)
class Verdict:
    """What the gate says."""

    findings: list[Finding] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    """What should have been judged and could not be."""
    notes: list[str] = field(default_factory=list)

    @property
    def leaks(self) -> list[Finding]:
        """The thresholds that are beaten, the furthest beyond first."""
        return sorted((one for one in self.findings if one.excess > 0), key=lambda one: -one.excess)

    @property
    def code(self) -> int:
        """The exit code: a leak is one whatever else could not be judged."""
        return LEAK if self.leaks else UNJUDGED if self.doubts or not self.findings else PASSED

    def line(self) -> str:
        """The verdict in one line."""
        told = [one.words() for one in self.leaks] or self.doubts or ["there is no scored target"]
        more = f"; {len(told) - 1} more, see --json" if len(told) > 1 else ""
        if self.code != PASSED:
            return f"{'LEAK' if self.leaks else 'CANNOT JUDGE'} {told[0]}{more}"
        nearest = max(self.findings, key=lambda one: one.excess)
        attacks = len({(one.cell, one.attack.folder) for one in self.findings})
        return f"PASSED {attacks} attack{'s' * (attacks > 1)} judged; nearest to its threshold: {nearest.words()}"

    def add(self, other: "Verdict") -> None:
        """Take in what another attack or cell came to."""
        self.findings.extend(other.findings)
        self.doubts.extend(other.doubts)
        self.notes.extend(other.notes)

    def as_json(self) -> dict[str, Any]:
        """The verdict for machines."""
        names = {PASSED: "passed", LEAK: "leak", UNJUDGED: "unjudged"}
        about = {"verdict": names[self.code], "line": self.line(), "doubts": self.doubts, "notes": self.notes}
        return {**about, "findings": [one.as_json() for one in self.findings]}


def who(attack: AttackResult) -> str:
    """An attack as people name it."""
    return f"{attack.who} {attack.attack}".removeprefix("attack ")


def judge_attack(cell: str, attack: AttackResult, limits: Sequence[Limit], *, worst: bool = False) -> Verdict:
    """Hold one attack against the thresholds: its mean over targets, or with `worst` its best success on a single one."""
    if not any(attack.rows):
        reason = next((line.get("reason") for line in attack.lines), "it has no targets")
        return Verdict(doubts=[f"{cell}: {who(attack)}: none of {len(attack.lines)} targets was scored: {reason}"])
    verdict = Verdict()
    for limit in limits:
        found = [_finding(cell, attack, limit, metric, worst=worst) for metric in limit.metrics]
        verdict.findings.extend(one for one in found if one is not None)
        if not any(found):
            reasons = [(line.get("unavailable") or {}).get(limit.metrics[0]) for line in attack.lines]
            reason = next((text for text in reasons if text), "no finite value")
            verdict.doubts.append(
                f"{cell}: {who(attack)}: {limit.name} was not scored on any target ({reason}): "
                f"attack again with it, or leave it out with --{limit.name} off"
            )
    return verdict


def _finding(cell: str, attack: AttackResult, limit: Limit, metric: str, *, worst: bool) -> Finding | None:
    found = attack.summary(metric)
    if found.mean is None:
        return None
    if not worst:
        return Finding(cell, attack, limit, metric, found.mean, found.low, found.high, found.n, found.failed, "")
    scored = [row for row in attack.rows if row]
    values = [(value, row) for row in scored if (value := row.get(metric)) is not None and math.isfinite(value)]
    value, row = (max if limit.above else min)(values, key=lambda one: one[0])
    target = f"round {row['round']}, " + ("aggregate" if row["client"] == -1 else f"client {row['client']}")
    return Finding(cell, attack, limit, metric, value, None, None, found.n, found.failed, target)


def judge(
    study: Study, limits: Sequence[Limit], *, attacks: Collection[str] = (), cells: Sequence[str] = (), worst: bool = False
) -> Verdict:
    """Judge the scored attacks of a run or sweep: those asked for as `attacks`, or all, on the cells that match `cells`."""
    judged = chosen(study, cells)
    whole = Verdict()
    if not cells and len(judged) < len(study.cells):
        whole.notes.append("undefended cells are not judged beside others; --cell judges what it names")
    for cell in judged:
        whole.add(_gaps(cell, attacks))
        for attack in _wanted(cell, attacks):
            whole.add(judge_attack(cell.name, attack, limits, worst=worst))
    return whole


def chosen(study: Study, cells: Sequence[str]) -> list[CellResult]:
    """The cells whose names match a pattern (`prune*`), without one all but a sweep's undefended baseline."""
    for pattern in cells:
        if not any(fnmatchcase(cell.name, pattern) for cell in study.cells):
            names = ", ".join(cell.name for cell in study.cells[:10])
            raise RunError(f"no cell of {study.path} is named {pattern!r}; there are: {names}")
    if cells:
        return [cell for cell in study.cells if any(fnmatchcase(cell.name, pattern) for pattern in cells)]
    return [cell for cell in study.cells if cell.varied.get("defense") != "none"] or study.cells


def _wanted(cell: CellResult, attacks: Collection[str]) -> list[AttackResult]:
    return [one for one in cell.attacks if not attacks or one.asked in attacks]


def _gaps(cell: CellResult, attacks: Collection[str]) -> Verdict:
    """What is missing of a cell, and what is there but was not attacked."""
    found, name, run = _wanted(cell, attacks), cell.name, cell.attacked
    doubts = [] if cell.failed is None else [f"{name}: the cell failed: {cell.failed}"]
    doubts += run.problems if run else []
    missing = [text for text in attacks if text not in [one.asked for one in found]]
    if missing or not found:
        words = f"`thorns attack {run.path if run else 'RUN'} --attack {(missing or ['SPEC'])[0]!r}`"
        doubts.append(f"{name}: no scored attack: run {words}, or name one with --attack")
    captured = len(Captures(run.path / "captures").paths()) if run else 0
    left = [(one, captured - len(one.lines)) for one in found]
    naive = run and run.experiment.defense != "none" and found and not any("defense" in one.grants for one in found)
    notes = [f"{name}: nobody attacked who knows the defense"] if naive else []
    notes += [f"{name}: {who(one)}: {n} of {captured} captured targets were not attacked" for one, n in left if n > 0]
    return Verdict(doubts=doubts, notes=notes)


def perceptual(limits: list[Limit]) -> bool:
    """Whether a threshold needs LPIPS."""
    return any(limit.name == "lpips" for limit in limits)
