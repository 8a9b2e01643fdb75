"""The tables of a report, as they are shown: cells with what they are sorted by."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from fl_app.analysis.measures import PSNR, SHOWN, Measure
from fl_app.analysis.settings import Attacker, Setting, floors_of, mean
from fl_app.analysis.verdict import judge
from fl_app.scoring.score import Summary, summarize


class Cell(NamedTuple):
    """What stands in a table; `small` is the interval or range behind a number, `order` what a column is sorted by."""

    text: str
    small: str = ""
    order: float | None = None
    style: str = ""
    hint: str = ""


class Column(NamedTuple):
    """The head of a column; those of one `group` stand below one title."""

    title: str
    group: str = ""
    number: bool = True


class Table(NamedTuple):
    """A table that can be sorted by each column; `foot` stays where it is."""

    name: str
    columns: list[Column]
    rows: list[list[Cell]]
    foot: list[list[Cell]]

    @property
    def groups(self) -> list[tuple[str, int]]:
        """(title, number of columns) of each run of columns with one group."""
        return [(title, len(list(columns))) for title, columns in groupby(self.columns, key=lambda column: column.group)]


NOTHING = Cell("-", style="none")


def number(value: float | None, digits: int, small: str = "") -> Cell:
    """A number, or a dash."""
    return NOTHING if value is None else Cell(f"{value:.{digits}f}", small, value)


def significant(value: float | None) -> Cell:
    """A number of any size to three digits."""
    return NOTHING if value is None else Cell(f"{value:.3g}", "", value)


def leak_cell(found: Summary, measure: Measure) -> Cell:
    """A mean with its interval, marked if it is beyond the threshold."""
    if found.mean is None:
        return NOTHING
    half = measure.half(found)
    return Cell(measure.text(found.mean), f"± {half}" if half else "", found.mean, "leak" if measure.leaked(found) else "")


def _spread(values: Sequence[float], digits: int, scale: float = 1.0) -> str:
    return f"{min(values) * scale:.{digits}f} to {max(values) * scale:.{digits}f}" if len(values) > 1 else ""


def _leaks(attacker: Attacker | None) -> list[Cell]:
    if attacker is None:
        return [NOTHING] * len(SHOWN)
    return [leak_cell(attacker.summary(measure.key), measure) for measure in SHOWN]


def summary(settings: Sequence[Setting]) -> Table:
    """One row a setting; blind guesses below."""
    leaks = [measure.title for measure in SHOWN]
    columns = [
        Column("#"),
        Column("setting", number=False),
        Column("verdict", number=False),
        Column("accuracy, %"),
        Column("PMM"),
        *(Column(title, "naive attacker") for title in leaks),
        *(Column(title, "worst informed attacker") for title in leaks),
        Column("which", "worst informed attacker", number=False),
        Column("targets"),
        Column("epsilon"),
        Column("s / round"),
    ]
    rows = []
    for setting in settings:
        verdict = judge(setting)
        accuracies, kept = list(setting.accuracies.values()), list(setting.pmm.values())
        value, shown = mean(accuracies), [one for one in (setting.naive, setting.informed) if one is not None]
        which, failed = setting.informed, sum(one.summary(PSNR.key).failed for one in shown)
        rows.append(
            [
                Cell(str(setting.number), "", setting.number),
                Cell(setting.label, style="name"),
                Cell(verdict.word, style=verdict.word.partition(" ")[0], hint="; ".join(verdict.reasons)),
                number(None if value is None else value * 100, 1, _spread(accuracies, 1, 100.0)),
                number(mean(kept), 3, "" if setting.undefended else _spread(kept, 3)),
                *_leaks(setting.naive),
                *_leaks(setting.informed),
                Cell(which.who, which.asked.partition("(")[0], hint=which.attack) if which else NOTHING,
                number(max((len(one.targets) for one in shown), default=None), 0, f"{failed} failed" if failed else ""),
                significant(setting.epsilon),
                significant(setting.seconds_a_round),
            ]
        )
    return Table("summary", columns, rows, _floors(settings, len(columns)))


def _floors(settings: Sequence[Setting], width: int) -> list[list[Cell]]:
    found = []
    for group in dict.fromkeys(setting.apart for setting in settings):
        for name, rows in floors_of([setting for setting in settings if setting.apart == group]).items():
            means = [summarize([{one.key: row.get(one.key)} for row in rows], one.key) for one in SHOWN]
            leaks = [leak_cell(value, measure)._replace(style="") for value, measure in zip(means, SHOWN, strict=True)]
            label = f"blind guess: {name}" + (f" ({group})" if group else "")
            cells = [Cell(""), Cell(label, style="name"), Cell(""), Cell(""), Cell(""), *leaks]
            cells += [Cell("")] * (len(SHOWN) + 1) + [number(len(rows), 0)]
            found.append(cells + [Cell("")] * (width - len(cells)))
    return found


def attackers(settings: Sequence[Setting]) -> Table:
    """One row an attacker: what it knew, what the server saw, what it reached."""
    heads = ("setting", "who", "attack as it was run", "told beyond the protocol", "server saw")
    columns = [Column("#"), *(Column(head, number=False) for head in heads)]
    columns += [Column("targets"), Column("failed"), *(Column(measure.title) for measure in SHOWN)]
    rows = [
        [
            Cell(str(setting.number), "", setting.number),
            Cell(setting.label, style="name"),
            Cell(one.who),
            Cell(one.attack, style="code"),
            Cell(one.ledger),
            Cell(f"{one.visibility} updates"),
            number(len(one.targets), 0),
            number(one.summary(PSNR.key).failed, 0),
            *_leaks(one),
        ]
        for setting in settings
        for one in setting.attackers
    ]
    return Table("attackers", columns, rows, [])


def cost(settings: Sequence[Setting]) -> Table:
    """One row a setting: what training and attacking it took."""
    heads = ("s / round", "of undefended", "training, s", "naive attack, s / target", "informed attack, s / target")
    columns = [Column("#"), Column("setting", number=False), *(Column(head) for head in heads)]
    plain = {repr(one.others): one.seconds_a_round for one in settings if one.undefended}
    rows = []
    for one in settings:
        base, seconds = plain.get(repr(one.others)), one.seconds_a_round
        total = mean([float(run.metrics[-1]["seconds"]) for run in one.trained.values() if run.metrics])
        rows.append(
            [
                Cell(str(one.number), "", one.number),
                Cell(one.label, style="name"),
                significant(seconds),
                number(seconds / base if seconds is not None and base else None, 2),
                number(total, 1),
                *(significant(_a_target(attacker)) for attacker in (one.naive, one.informed)),
            ]
        )
    return Table("cost", columns, rows, [])


def _a_target(attacker: Attacker | None) -> float | None:
    if attacker is None or attacker.seconds is None or not attacker.targets:
        return None
    return attacker.seconds / len(attacker.targets)
