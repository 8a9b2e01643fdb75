"""Who could tell that an example was there: ROC curves on logarithmic axes, and a table with exact intervals."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from markupsafe import Markup

from fl_app.analysis.attackers import Attacker
from fl_app.analysis.conditions import Condition
from fl_app.analysis.membership import Told, told_by
from fl_app.report import svg
from fl_app.report.charts import Chart, Point, Series
from fl_app.report.tables import NOTHING, Entry, Head, Table, leak_entry, number, told
from fl_app.scoring import roc
from fl_app.scoring.membership import MEASURES, floor
from fl_app.scoring.roc import Share
from fl_app.store.files import RunError

POINTS = 60
"""False-positive rates at which a curve is drawn."""
FLOOR = "prior guess"


class Roc(NamedTuple):
    """The curves of one setting, with what their colours mean."""

    condition: Condition
    chart: Chart
    legend: list[tuple[str, Markup]]


class Shown(NamedTuple):
    """The section: curves, the table, and what could not be read."""

    curves: list[Roc]
    table: Table
    problems: list[str]
    audits: list[tuple[Condition, list[str]]]

    def __bool__(self) -> bool:
        return bool(self.curves or self.problems or self.audits)


def membership(conditions: Sequence[Condition]) -> Shown:
    """All settings whose attackers were asked who was there, and the canary audits of their defenses."""
    curves, rows, problems = list[Roc](), list[list[Entry]](), list[str]()
    for condition in conditions:
        found: list[tuple[int, Told]] = []
        for attacker in condition.attackers:
            try:
                one = told_by(attacker)
            except RunError as error:
                problems.append(str(error))
                continue
            if one is not None and len(one.members) and len(one.others):
                rows.append(_row(len(rows) + 1, condition, one))
                found.append((len(rows), one))
        if found:
            curves.append(_roc(condition, found, len(curves) + 1))
    audits = [
        (one, audit.sentences())
        for one in conditions
        if (audit := next((run.audit for run in one.runs if run.audit is not None), None)) is not None
    ]
    return Shown(curves, Table("membership-attacks", _heads(), rows, [_foot()]), problems, audits)


def _heads() -> list[Head]:
    words = ("setting", "attacker", "told beyond the protocol")
    rates = (f"found at {rate:.1%} false" for rate in roc.RATES)
    return [
        Head("#"),
        *(Head(word, number=False) for word in words),
        Head("AUC"),
        Head("advantage"),
        *map(Head, rates),
        Head("members"),
        Head("others"),
    ]


def _row(place: int, condition: Condition, one: Told) -> list[Entry]:
    attacker = one.attacker
    return [
        Entry(str(place), "", place),
        Entry(condition.label, style="name"),
        Entry(_name(attacker), style="code"),
        Entry(told(attacker)),
        leak_entry(attacker.summary("auc"), MEASURES["auc"]),
        leak_entry(attacker.summary("advantage"), MEASURES["advantage"]),
        *(_share(one.found_at(rate)) for rate in roc.RATES),
        number(len(one.members), 0),
        number(len(one.others), 0),
    ]


def _share(found: Share | None) -> Entry:
    return NOTHING if found is None else Entry(f"{found.value:.3f}", f"{found.low:.3f} to {found.high:.3f}", found.value)


def _foot() -> list[Entry]:
    blind = floor()
    values = [blind["auc"], blind["advantage"], *roc.RATES]
    return [NOTHING, Entry("blind floor"), Entry(FLOOR), NOTHING, *(number(value, 3) for value in values), NOTHING, NOTHING]


def _name(attacker: Attacker) -> str:
    return attacker.attack if attacker.who == "attack" else f"{attacker.attack} ({attacker.who.partition(':')[0]})"


def _roc(condition: Condition, found: Sequence[tuple[int, Told]], place: int) -> Roc:
    least = 1 / max(len(one.others) for _, one in found)
    rates = torch.logspace(torch.tensor(least).log10().item(), 0, POINTS, dtype=torch.float64).tolist()
    series = [Series(FLOOR, 0, [Point(rate, rate, 0, FLOOR) for rate in rates])]
    for color, (row, one) in enumerate(found, 1):
        series.append(Series(_name(one.attacker), color, _points(row, one, rates)))
    chart = Chart(
        f"roc-{place}",
        f"ROC: {condition.label}",
        "false-positive rate",
        "true-positive rate",
        series,
        dots=False,
        log=True,
        log_x=True,
    )
    legend = [(one.name, svg.swatch(one.color)) for one in series]
    return Roc(condition, chart, legend)


def _points(row: int, one: Told, rates: Sequence[float]) -> list[Point]:
    """The curve at rates that the others can tell; a share of none is drawn at the lower edge."""
    others = one.others.sort(descending=True).values
    allowed = [int(rate * len(others) + 1e-9) for rate in rates]
    name, points = _name(one.attacker), []
    for rate, number_ in zip(rates, allowed, strict=True):
        if number_:
            level = float(others[number_]) if number_ < len(others) else -torch.inf
            points.append(Point(rate, float((one.members > level).double().mean()), row, name))
    return points
