"""The gate's thresholds on what is told without a reconstruction: members found at a false-positive rate, empirical epsilon."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from fl_app.analysis.attackers import Attacker
from fl_app.analysis.audit_dp import Audit
from fl_app.analysis.findings import Finding, who
from fl_app.analysis.gate import Judged, Ruling, chosen, wanted
from fl_app.analysis.membership import QUESTION, told_by
from fl_app.analysis.results import AttackResult, CellResult, RunResult, Study
from fl_app.scoring.base import Measure, Threshold
from fl_app.scoring.score import Summary
from fl_app.store.files import RunError


class AtRate(NamedTuple):
    """The most members, as a share, that may be found at a false-positive rate."""

    rate: float
    most: float


def at_rate(text: str) -> AtRate:
    """`"0.001:0.05"` -> the rate and the share; ValueError if it is not that."""
    rate, colon, most = text.partition(":")
    try:
        found = AtRate(float(rate), float(most))
    except ValueError:
        found = AtRate(0.0, 0.0)
    if not colon or not 0 < found.rate < 1 or not 0 <= found.most <= 1:
        raise ValueError(f"--tpr-at-fpr takes RATE:SHARE, such as 0.001:0.05, not {text!r}")
    return found


def judge_membership(study: Study, limit: AtRate, attacks: Collection[str] = (), cells: Sequence[str] = ()) -> Ruling:
    """Hold the membership attacks on each cell against a share of members found."""
    whole = Ruling()
    for cell in chosen(study, cells):
        asked = [one for one in wanted(cell, attacks) if one.question == QUESTION]
        if not asked:
            run = cell.attacked.path if cell.attacked else "RUN"
            words = f"run `thorns attack {run} --attack alignment`, or name one with --attack"
            whole.doubts.append(f"'{cell.name}': no scored membership attack: {words}")
        for one in asked:
            whole.add(judge_members(cell.name, one, limit))
    return whole


def judge_members(cell: str, attack: AttackResult, limit: AtRate) -> Ruling:
    """Hold one membership attack against a share of members found."""
    attacker, rate, name = Attacker([attack]), limit.rate, f"tpr_at_{limit.rate:g}"
    measure = Measure(title=name, higher_leaks=True, threshold=Threshold(limit.most, "asked for"), question=QUESTION)
    try:
        told = told_by(attacker)
    except RunError as error:
        return Ruling(doubts=[f"'{cell}': {error}"])
    if told is None or not len(told.members):
        return Ruling(doubts=[f"'{cell}': {who(attacker)}: no target was scored"])
    summary = told.summary(rate)
    if summary is None or summary.mean is None:
        return Ruling(
            doubts=[f"'{cell}': {who(attacker)}: {len(told.others)} non-members are too few to tell a rate of {rate:g}"]
        )
    return Ruling([Judged(cell, Finding(attacker, name, measure, summary.mean, summary))])


def judge_epsilon(study: Study, most: float, cells: Sequence[str] = ()) -> Ruling:
    """Hold the canary audit of each cell against an epsilon; one that was refuted is a leak at any."""
    whole = Ruling()
    for cell in chosen(study, cells):
        whole.add(_epsilon(cell, most))
    return whole


def _epsilon(cell: CellResult, most: float) -> Ruling:
    run = cell.attacked or cell.training
    audit = run.audit if run else None
    if run is None or audit is None:
        return Ruling(doubts=[f"'{cell.name}': no canary audit: run `thorns audit-dp {run.path if run else 'RUN'}`"])
    measure = Measure(title="empirical epsilon", higher_leaks=True, threshold=Threshold(most, "asked for"))
    found = [_finding(run, audit, "empirical_epsilon", measure, audit.empirical)]
    for one in audit.audits:
        if one.empirical > one.upper:
            broken = Measure(title="promised epsilon", higher_leaks=True, threshold=Threshold(one.upper, "the accountant"))
            found.append(_finding(run, audit, "promised_epsilon", broken, one.empirical))
    return Ruling([Judged(cell.name, one) for one in found])


def _finding(run: RunResult, audit: Audit, name: str, measure: Measure, value: float) -> Finding:
    auditor = AttackResult(run.path, "audit-dp", "audit-dp", "attack", ("canaries",), [], {}, None, {})
    trials = sum(one.scored for one in audit.audits)
    return Finding(Attacker([auditor]), name, measure, value, Summary(value, None, None, trials, 0, 0))
