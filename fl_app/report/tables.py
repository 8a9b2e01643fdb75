"""The tables of a report, as they are shown: entries with what they are sorted by."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from fl_app.analysis.attackers import Attacker, in_words
from fl_app.analysis.conditions import Condition, floors_of, mean, measures_shown
from fl_app.analysis.verdict import UNDECIDED, WEAK, Verdict, verdict_of
from fl_app.scoring.base import Measure
from fl_app.scoring.score import Summary, summarize

NAIVE = "naive attacker"
INFORMED = "informed: worst of all attackers"
MOST_ROUNDS = 8
"""Of more attacked rounds some are left out of the table; the curves have all of them."""


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

    @property
    def label(self) -> str:
        """The title by itself, where there is no room for heads above columns."""
        return f"{self.title}, {self.group.partition(':')[0]}" if self.group else self.title


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


def summary(conditions: Sequence[Condition]) -> Table:
    """One row per condition; blind floors below. A column is a head and what stands below it."""
    measures = measures_shown(conditions, "tables")
    columns: list[tuple[Head, Callable[[Condition], Entry]]] = [
        (Head("#"), lambda one: Entry(str(one.number), "", one.number)),
        (Head("setting", number=False), lambda one: Entry(one.label, style="name")),
        (Head("verdict", number=False), lambda one: _verdict(verdict_of(one))),
        (Head("accuracy, %"), _accuracy),
        (Head("PMM"), _kept),
        *((Head(one.title, NAIVE), partial(_naive, name)) for name, one in measures.items()),
        *((Head(one.title, INFORMED), partial(_informed, name)) for name, one in measures.items()),
        (Head("which", INFORMED, number=False), partial(_which, measures)),
        (Head("targets"), partial(_targets, measures)),
        (Head("epsilon"), _epsilon),
        (Head("s / round"), lambda one: significant(one.seconds_a_round)),
    ]
    heads = [head for head, _ in columns]
    rows = [[entry(one) for _, entry in columns] for one in conditions]
    return Table("summary", heads, rows, _floors(conditions, measures, heads))


def _accuracy(one: Condition) -> Entry:
    values = [100 * value for value in one.accuracies.values()]
    return number(mean(values), 1, _spread(values, 1))


def _kept(one: Condition) -> Entry:
    values = list(one.pmm.values())
    return number(mean(values), 3, "" if one.undefended else _spread(values, 3))


def _naive(metric: str, one: Condition) -> Entry:
    return _two(one.naive(metric), one.naive(metric, by_truth=True), metric, one.measures[metric])


def _informed(metric: str, one: Condition) -> Entry:
    return _two(one.informed(metric), one.informed(metric, by_truth=True), metric, one.measures[metric])


def _two(answered: Attacker | None, worst: Attacker | None, metric: str, measure: Measure) -> Entry:
    """What was answered, with the worst member by truth below it where there are members; marked if either leaks."""
    entry = _leak(answered, metric, measure)
    if worst is None or not worst.by_truth:
        return entry
    members = leak_entry(worst.summary(metric), measure)
    small = "; ".join(text for text in (entry.small, f"by truth {members.text} {members.small}".rstrip()) if text)
    hint = f"{entry.hint}; {worst.name}: {in_numbers(worst.members(metric))}"
    return entry._replace(small=small, style=members.style or entry.style, hint=hint)


def in_numbers(members: Mapping[str, int]) -> str:
    """Members with the number of targets on which each was the worst."""
    return ", ".join(f"{name} {number}" for name, number in members.items())


def _leak(attacker: Attacker | None, metric: str, measure: Measure) -> Entry:
    """What an attacker reached, with its control below it where it needs one; marked if it leaks."""
    if attacker is None:
        return NOTHING
    entry, control = leak_entry(attacker.summary(metric), measure, attacker.name), attacker.control(metric)
    if control.mean is None:
        return entry
    beside = leak_entry(control, measure)
    small = "; ".join(text for text in (entry.small, f"control {beside.text}") if text)
    hint = f"{entry.hint}; control {beside.text} {beside.small}".rstrip()
    return entry._replace(small=small, hint=hint, style=entry.style if attacker.leaks(metric, measure) else "")


def _targets(measures: Mapping[str, Measure], one: Condition) -> Entry:
    """How many targets the attackers had that are shown."""
    found = [find(name) for name in measures for find in (one.naive, one.informed)]
    shown = list(dict.fromkeys(each for each in found if each is not None))
    failed = sum(each.failed for each in shown)
    return number(max((len(each.targets) for each in shown), default=None), 0, f"{failed} failed" if failed else "")


def _epsilon(one: Condition) -> Entry:
    return significant(one.epsilon)._replace(small="" if one.delta is None else f"at delta {short(one.delta)}")


def short(value: float) -> str:
    """A small number as people write it: 1e-5."""
    return f"{value:g}".replace("e-0", "e-")


def _verdict(verdict: Verdict) -> Entry:
    """The word, with the reason below it where there is no red number that shows it."""
    small = f"{WEAK}: {'; '.join(verdict.reasons)}" if verdict.word == UNDECIDED else ""
    return Entry(verdict.word, small, style=verdict.word.partition(" ")[0], hint="; ".join(verdict.reasons))


def _which(measures: Mapping[str, Measure], one: Condition) -> Entry:
    """Who the worst attacker was, by each metric."""
    found = {name: one.informed(name) for name in measures}
    attackers = list(dict.fromkeys(one for one in found.values() if one is not None))
    if not attackers:
        return NOTHING
    words = in_words({measures[name].title: one for name, one in found.items()})
    attacks = dict.fromkeys(one.asked.partition("(")[0] for one in attackers)
    return Entry(words, ", ".join(attacks), hint="; ".join(one.attack for one in attackers))


def _floors(conditions: Sequence[Condition], measures: Mapping[str, Measure], heads: Sequence[Head]) -> list[list[Entry]]:
    found = []
    for group in dict.fromkeys(one.apart for one in conditions):
        for name, rows in floors_of([one for one in conditions if one.apart == group]).items():
            label = f"blind floor: {name}" + (f" ({group})" if group else "")
            entries = {"setting": Entry(label, style="name"), "targets": number(len(rows), 0)}
            for metric, measure in measures.items():
                entries[f"{measure.title}, {NAIVE}"] = leak_entry(summarize(rows, metric), measure)._replace(style="")
            found.append([entries.get(head.label, Entry("")) for head in heads])
    return found


def leak_by_round(conditions: Sequence[Condition]) -> Table | None:
    """What the worst attacker of each round reached, where several rounds were attacked; by PSNR if that is shown."""
    rounds = sorted({number for one in conditions for number in one.attacked_rounds})
    metric = next(iter(measures_shown(conditions, "tables")), None)
    if len(rounds) < 2 or metric is None:
        return None
    some = min(len(rounds), MOST_ROUNDS)
    chosen = [rounds[place * (len(rounds) - 1) // (some - 1)] for place in range(some)]
    measure = conditions[0].measures[metric]
    unit = f" [{measure.unit}]" if measure.unit else ""
    heads = [Head("#"), Head("setting", number=False), *(Head(f"round {one}", f"{measure.title}{unit}") for one in chosen)]
    rows = [
        [
            Entry(str(one.number), "", one.number),
            Entry(one.label, style="name"),
            *(_in_round(one, metric, server_round) for server_round in chosen),
        ]
        for one in conditions
        if one.attackers
    ]
    return Table("leak-by-round", heads, rows, [])


def _in_round(one: Condition, metric: str, server_round: int) -> Entry:
    attacker = one.worst(metric, server_round)
    if attacker is None:
        return NOTHING
    return leak_entry(attacker.summary(metric, server_round), one.measures[metric], attacker.name)


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
            Entry(one.attack, in_numbers(one.members(condition.leading)) if one.by_truth else "", style="code"),
            Entry(told(one)),
            Entry(condition.seen_in_words),
            number(len(one.targets), 0),
            number(one.failed, 0),
            *(_leak(one, name, measure) for name, measure in measures.items()),
        ]
        for condition in conditions
        for one in condition.attackers
    ]
    return Table("attackers", columns, rows, [])


def cost(conditions: Sequence[Condition]) -> Table:
    """One row per condition: what training and attacking it took."""
    heads = ("s / round", "of undefended", "waiting for clients, s", "to clients, MB", "from clients, MB", "training, s")
    attacks = ("naive attack, s / target", "informed attack, s / target")
    columns = [Head("#"), Head("setting", number=False), *(Head(head) for head in (*heads, *attacks))]
    # Undefended is also without a protocol, if that was run: those come last and stay.
    bare = sorted((one for one in conditions if one.undefended), key=lambda one: not any(_protocols(one)))
    plain = {_beside(one): one.seconds_a_round for one in bare}
    rows = []
    for one in conditions:
        base, seconds = plain.get(_beside(one)), one.seconds_a_round
        total = mean([float(run.metrics[-1]["seconds"]) for run in one.trained.values() if run.metrics])
        carried = [one.cost_a_round(key) for key in ("sent_bytes", "received_bytes")]
        rows.append(
            [
                Entry(str(one.number), "", one.number),
                Entry(one.label, style="name"),
                significant(seconds),
                number(seconds / base if seconds is not None and base else None, 2),
                significant(one.cost_a_round("clients_seconds")),
                *(significant(None if size is None else size / 1e6) for size in carried),
                number(total, 1),
                *(significant(_per_target(attacker)) for attacker in (one.naive(), one.told())),
            ]
        )
    return Table("cost", columns, rows, [])


def _protocols(one: Condition) -> list[str]:
    return [run.experiment.protocol for run in one.trained.values()]


def _beside(one: Condition) -> str:
    """What it must share with a condition to cost more or less than it by defense and protocol alone."""
    return repr({key: value for key, value in one.others.items() if key != "visibility"})


def _per_target(attacker: Attacker | None) -> float | None:
    if attacker is None or attacker.seconds is None or not attacker.targets:
        return None
    return attacker.seconds / len(attacker.targets)
