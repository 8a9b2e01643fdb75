"""The tables of a report, as they are shown: entries with what they are sorted by."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from fl_app.analysis.attackers import Attacker, in_words
from fl_app.analysis.conditions import Condition, floors_of, mean, measures_shown
from fl_app.analysis.verdict import UNDECIDED, WEAK, Verdict, verdict_of
from fl_app.scoring.base import Measure
from fl_app.scoring.score import Summary, summarize

INFORMED = "informed: worst of all attackers"


class Entry(NamedTuple):
    """What stands in a table; `small` is the interval or range behind a number, `order` what a column is sorted by."""

    text: str
    small: str = ""
    order: float | None = None
    style: str = ""
    hint: str = ""


class Head(NamedTuple):
    """The head of a column; those of one `group` stand below one title."""

    title: str
    group: str = ""
    number: bool = True


class Table(NamedTuple):
    """A table that can be sorted by each column; `foot` stays where it is."""

    name: str
    columns: list[Head]
    rows: list[list[Entry]]
    foot: list[list[Entry]]

    @property
    def groups(self) -> list[tuple[str, int]]:
        """(title, number of columns) of each run of columns with one group."""
        return [(title, len(list(columns))) for title, columns in groupby(self.columns, key=lambda column: column.group)]


NOTHING = Entry("-", style="none")


def number(value: float | None, digits: int, small: str = "") -> Entry:
    """A number, or a dash."""
    return NOTHING if value is None else Entry(f"{value:.{digits}f}", small, value)


def significant(value: float | None) -> Entry:
    """A number of any size to three digits."""
    return NOTHING if value is None else Entry(f"{value:.3g}", "", value)


def half(found: Summary, measure: Measure) -> str:
    """Half of the 95 % interval as shown; empty if there is none."""
    return "" if found.low is None or found.high is None else f"{(found.high - found.low) / 2:.{measure.digits}f}"


def leak_entry(found: Summary, measure: Measure, hint: str = "") -> Entry:
    """A mean with its interval, marked if it is beyond the threshold."""
    if found.mean is None:
        return NOTHING
    interval, style = half(found, measure), "leak" if measure.leaks(found.mean) else ""
    return Entry(measure.text(found.mean), f"± {interval}" if interval else "", found.mean, style, hint)


def _spread(values: Sequence[float], digits: int, scale: float = 1.0) -> str:
    return f"{min(values) * scale:.{digits}f} to {max(values) * scale:.{digits}f}" if len(values) > 1 else ""


def _leaks(found: Mapping[str, Attacker | None], measures: Mapping[str, Measure]) -> list[Entry]:
    """What attackers reached, by metric."""
    return [
        NOTHING if (one := found[name]) is None else leak_entry(one.summary(name), measure, one.name)
        for name, measure in measures.items()
    ]


def summary(conditions: Sequence[Condition]) -> Table:
    """One row per condition; blind floors below."""
    measures = measures_shown(conditions, "tables")
    columns = [
        Head("#"),
        Head("setting", number=False),
        Head("verdict", number=False),
        Head("accuracy, %"),
        Head("PMM"),
        *(Head(measure.title, "naive attacker") for measure in measures.values()),
        *(Head(measure.title, INFORMED) for measure in measures.values()),
        Head("which", INFORMED, number=False),
        Head("targets"),
        Head("epsilon"),
        Head("s / round"),
    ]
    rows = []
    for one in conditions:
        verdict = verdict_of(one)
        accuracies, kept = list(one.accuracies.values()), list(one.pmm.values())
        value = mean(accuracies)
        naive, informed = ({name: find(name) for name in measures} for find in (one.naive, one.informed))
        shown = list(dict.fromkeys(each for each in (*naive.values(), *informed.values()) if each is not None))
        failed = sum(each.failed for each in shown)
        rows.append(
            [
                Entry(str(one.number), "", one.number),
                Entry(one.label, style="name"),
                _verdict(verdict),
                number(None if value is None else value * 100, 1, _spread(accuracies, 1, 100.0)),
                number(mean(kept), 3, "" if one.undefended else _spread(kept, 3)),
                *_leaks(naive, measures),
                *_leaks(informed, measures),
                _which(informed, measures),
                number(max((len(each.targets) for each in shown), default=None), 0, f"{failed} failed" if failed else ""),
                significant(one.epsilon),
                significant(one.seconds_a_round),
            ]
        )
    return Table("summary", columns, rows, _floors(conditions, measures, len(columns)))


def _verdict(verdict: Verdict) -> Entry:
    """The word, with the reason below it where there is no red number that shows it."""
    weak = [f"{WEAK}:", *verdict.reasons] if verdict.word == UNDECIDED else []
    return Entry(verdict.word, " ".join(weak), style=verdict.word.partition(" ")[0], hint="; ".join(verdict.reasons))


def _which(found: Mapping[str, Attacker | None], measures: Mapping[str, Measure]) -> Entry:
    """Who the worst attacker was, by each metric."""
    attackers = list(dict.fromkeys(one for one in found.values() if one is not None))
    if not attackers:
        return NOTHING
    words = in_words({measures[name].title: one for name, one in found.items()})
    attacks = dict.fromkeys(one.asked.partition("(")[0] for one in attackers)
    return Entry(words, ", ".join(attacks), hint="; ".join(one.attack for one in attackers))


def _floors(conditions: Sequence[Condition], measures: Mapping[str, Measure], width: int) -> list[list[Entry]]:
    found = []
    for group in dict.fromkeys(one.apart for one in conditions):
        for name, rows in floors_of([one for one in conditions if one.apart == group]).items():
            leaks = [leak_entry(summarize(rows, metric), measure)._replace(style="") for metric, measure in measures.items()]
            label = f"blind floor: {name}" + (f" ({group})" if group else "")
            entries = [Entry(""), Entry(label, style="name"), Entry(""), Entry(""), Entry(""), *leaks]
            entries += [Entry("")] * (len(measures) + 1) + [number(len(rows), 0)]
            found.append(entries + [Entry("")] * (width - len(entries)))
    return found


def told(attacker: Attacker) -> str:
    """What an attacker was told beyond the protocol."""
    return attacker.ledger.removesuffix(" beyond the protocol")


def attackers(conditions: Sequence[Condition]) -> Table:
    """One row per attacker: what it knew, what the server saw, what it reached."""
    measures = measures_shown(conditions, "tables")
    heads = ("setting", "who", "attack as it was run", "told beyond the protocol", "server saw")
    columns = [Head("#"), *(Head(head, number=False) for head in heads)]
    columns += [Head("targets"), Head("failed"), *(Head(measure.title) for measure in measures.values())]
    rows = [
        [
            Entry(str(condition.number), "", condition.number),
            Entry(condition.label, style="name"),
            Entry(one.who),
            Entry(one.attack, style="code"),
            Entry(told(one)),
            Entry(f"{one.visibility} updates"),
            number(len(one.targets), 0),
            number(one.failed, 0),
            *_leaks(dict.fromkeys(measures, one), measures),
        ]
        for condition in conditions
        for one in condition.attackers
    ]
    return Table("attackers", columns, rows, [])


def cost(conditions: Sequence[Condition]) -> Table:
    """One row per condition: what training and attacking it took."""
    heads = ("s / round", "of undefended", "training, s", "naive attack, s / target", "informed attack, s / target")
    columns = [Head("#"), Head("setting", number=False), *(Head(head) for head in heads)]
    plain = {repr(one.others): one.seconds_a_round for one in conditions if one.undefended}
    rows = []
    for one in conditions:
        base, seconds = plain.get(repr(one.others)), one.seconds_a_round
        total = mean([float(run.metrics[-1]["seconds"]) for run in one.trained.values() if run.metrics])
        rows.append(
            [
                Entry(str(one.number), "", one.number),
                Entry(one.label, style="name"),
                significant(seconds),
                number(seconds / base if seconds is not None and base else None, 2),
                number(total, 1),
                *(significant(_per_target(attacker)) for attacker in (one.naive(), one.told())),
            ]
        )
    return Table("cost", columns, rows, [])


def _per_target(attacker: Attacker | None) -> float | None:
    if attacker is None or attacker.seconds is None or not attacker.targets:
        return None
    return attacker.seconds / len(attacker.targets)
