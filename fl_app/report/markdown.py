"""What a sweep measured, as Markdown: every attacker with intervals and what it was told, a paper's figures beside ours."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from scipy import stats

from fl_app.analysis.attackers import Attacker
from fl_app.analysis.conditions import Condition, conditions_of, floors_of, mean, missing
from fl_app.analysis.headline import cautions, headline
from fl_app.analysis.results import WORST_MEMBER, Study
from fl_app.analysis.verdict import verdict_of
from fl_app.report.paper import Figures, paper_value
from fl_app.scoring.score import Summary, summarize
from fl_app.scoring.target import Row, TargetScore
from fl_app.store.files import RunError

TRAINED: dict[str, Callable[[Condition], Iterable[float | None]]] = {
    "accuracy": lambda one: one.accuracies.values(),
    "pmm": lambda one: [100 * share for share in one.pmm.values()],
    "macro_f1": lambda one: [run.last.get("macro_f1") for run in one.trained.values()],
    "mcc": lambda one: [run.last.get("mcc") for run in one.trained.values()],
    "epsilon": lambda one: [one.epsilon],
}
"""What can be shown of a training: its values, one per seed."""
TITLES = {"pmm": "PMM", "macro_f1": "macro F1", "mcc": "MCC"}
DIGITS = {"pmm": 1, "epsilon": 1}
KEPT = 0.95
"""The share of the undefended accuracy that a defense should keep."""
MARKER = re.compile(r"<!-- results: (.*?) -->")
LEGEND = """\
- Brackets are 95 % intervals: by t over the targets of all seeds (a target is one update), exact ones (Clopper and Pearson)
  for shares, over seeds for accuracies, which have none with one seed. Failed targets are counted, are in no mean and reach no
  limit.
- PMM is the accuracy in percent of that of the undefended training with the same seed and other settings.
- "Naive" attackers know the model and the protocol, "informed" ones also the defense and its settings; what else each was told
  stands beside it.
- A change is against no defense under the naive attacker, on the same targets. A blind floor is the score of an
  answer that never saw the update."""


class Column(NamedTuple):
    """A metric as it is shown: its mean, its change against no defense, or the share of targets on one side of a limit."""

    metric: str
    change: bool = False
    sign: str = ""
    limit: float = 0.0

    def title(self, metric: str = "") -> str:
        """As in the text that asks for it, or with another name of the metric."""
        limit = f" {self.sign} {self.limit:g}" if self.sign else ""
        return f"{'change of ' if self.change else ''}{metric or self.metric}{limit}"

    def met(self, value: float) -> bool:
        """Whether a value is on the right side of the limit."""
        return value < self.limit if self.sign == "<" else value >= self.limit


def column_of(text: str) -> Column:
    """`psnr`, `change of psnr`, `psnr >= 20` or `loss < 0.01`."""
    found = re.fullmatch(r"(change of )?(\w+)(?: (<|>=) ([0-9.e+-]+))?", text.strip())
    if found is None or (found[1] and found[3]):
        raise RunError(f"'{text.strip()}' is no column: write psnr, change of psnr, psnr >= 20 or psnr < 20")
    return Column(found[2], bool(found[1]), found[3] or "", float(found[4] or 0.0))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table, with an empty line after it."""
    lines = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in (heads, *rows)]
    return [lines[0], "|" + "---|" * len(heads), *lines[1:], ""]


def shown(value: Summary, digits: int) -> str:
    """A mean with its interval."""
    if value.mean is None:
        return "-"
    mean, *ends = (f"{round(one, digits) + 0.0:.{digits}f}" for one in value[:3] if one is not None)  # no minus zero
    return f"{mean} [{', '.join(ends)}]" if ends else mean


def share(hits: int, n: int) -> str:
    """A share of n targets with its exact interval."""
    if not n:
        return "-"
    interval = stats.binomtest(hits, n).proportion_ci()
    return f"{100 * hits / n:.0f} % [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"


class ResultTable:
    """The table of conditions that differ in their defenses alone."""

    def __init__(self, conditions: Sequence[Condition], columns: Sequence[str], figures: Sequence[Figures]) -> None:
        self.conditions, self.figures = conditions, figures
        self.trained = [name.strip() for name in columns if name.strip() in TRAINED]
        self.columns = [column_of(name) for name in columns if name.strip() not in TRAINED]
        self.measures = conditions[0].measures
        for column in self.columns:
            if column.metric != "loss" and column.metric not in self.measures:
                raise RunError(f"there is no metric '{column.metric}'; there are loss, {', '.join(self.measures)}")
        asked = {attacker.asked for one in conditions for attacker in one.attackers}
        self.brief = len({text.partition("(")[0] for text in asked}) == len(asked)
        self.plain = next((one for one in conditions if one.undefended), None)

    def lines(self) -> list[str]:
        """The table as Markdown."""
        heads = [
            "defense",
            *(TITLES.get(name, name) for name in self.trained),
            "attacker",
            "told beyond the protocol",
            "round",
            "targets",
        ]
        rows = [row for one in self.conditions for row in self._rows(one)]
        for name, blind in floors_of(self.conditions).items():
            cells = [self._blind(blind, column) for column in self.columns]
            rows.append(["", *("" for _ in self.trained), f"blind floor: {name}", "", "", str(len(blind)), *cells])
        return table([*heads, *(column.title(self._title(column)) for column in self.columns)], rows)

    def _rows(self, one: Condition) -> list[list[str]]:
        trained = [self._trained(one, name) for name in self.trained]
        rows = []
        for attacker in one.attackers:
            for stage, server_round in enumerate(attacker.rounds, 1):
                targets = [target for target in attacker.targets if target.round == server_round]
                failed = sum(not target.done for target in targets)
                who = attacker.who if attacker.informed else f"naive, {WORST_MEMBER}" if attacker.by_truth else "naive"
                name = f"{who}, {attacker.asked.partition('(')[0] if self.brief else f'`{attacker.asked}`'}"
                count = f"{len(targets)}" + (f" ({failed} failed)" if failed else "")
                cells = [self._cell(one, attacker, column, stage, targets) for column in self.columns]
                told = attacker.ledger.removesuffix(" beyond the protocol")
                rows.append([f"`{one.defense}`", *trained, name, told, str(server_round), count, *cells])
                trained = ["" for _ in self.trained]  # once per condition
        return rows or [[f"`{one.defense}`", *trained, "none finished", "", "", "0", *("" for _ in self.columns)]]

    def _trained(self, one: Condition, name: str) -> str:
        values = summarize([{name: value} for value in TRAINED[name](one)], name)
        return shown(values, DIGITS.get(name, 3)) + self._paper(paper_value(self.figures, one, name))

    def _paper(self, value: float | None, unit: str = "") -> str:
        return "" if value is None else f"; paper {value:g}{unit}"

    def _cell(self, one: Condition, attacker: Attacker, column: Column, stage: int, targets: Sequence[TargetScore]) -> str:
        if column.metric == "loss" and attacker.informed:
            return ""  # it minimises something else
        theirs = None if attacker.informed else paper_value(self.figures, one, column.title(), attacker.asked, stage)
        values = [_value(target, column.metric) if target.done else None for target in targets]
        if column.sign:
            hits = sum(value is not None and column.met(value) for value in values)
            return share(hits, len(values)) + self._paper(None if theirs is None else 100 * theirs, " %")
        digits = self._digits(column)
        if column.change:
            return shown(self._change(one, attacker, column.metric, targets[0].round), digits)
        rows = [{column.metric: _value(target, column.metric)} if target.done else None for target in targets]
        control = summarize([target.control for target in targets if target.done], column.metric)
        beside = "" if control.mean is None else f" (control {shown(control, digits)})"
        return shown(summarize(rows, column.metric), digits) + beside + self._paper(theirs)

    def _title(self, column: Column) -> str:
        return self.measures[column.metric].title if column.metric in self.measures else column.metric

    def _digits(self, column: Column) -> int:
        return self.measures[column.metric].digits if column.metric in self.measures else 4

    def _change(self, one: Condition, attacker: Attacker, metric: str, server_round: int) -> Summary:
        """Attacker minus the naive one on undefended updates, target by target."""
        naive = [each for each in self.plain.attackers if each.asked == attacker.asked] if self.plain else []
        before = _by_target(self.plain, naive[0], metric) if self.plain and naive and not one.undefended else {}
        after = _by_target(one, attacker, metric)
        pairs = [{"": value - before[key]} for key, value in after.items() if key in before and key[1] == server_round]
        return summarize(pairs, "")

    def _blind(self, rows: Sequence[Row], column: Column) -> str:
        if column.change or column.metric == "loss":
            return ""
        if column.sign:
            return share(sum(column.met(value) for row in rows if (value := row.get(column.metric)) is not None), len(rows))
        return shown(summarize(rows, column.metric), self._digits(column))


def _value(target: TargetScore, metric: str) -> float | None:
    return target.loss if metric == "loss" else target.values.get(metric)


def _by_target(one: Condition, attacker: Attacker, metric: str) -> dict[tuple[int, int, int], float]:
    """(seed, round, client) -> value."""
    found = {}
    for part in attacker.parts:
        seed = one.run_of(part).experiment.seed
        for target in part.targets:
            if (value := _value(target, metric)) is not None:
                found[(seed, *target.key)] = value
    return found


def results(study: Study, columns: Sequence[str], figures: Sequence[Figures]) -> list[str]:
    """All tables of a study, each with what it says in words, and what could not be finished."""
    lines = [f"- **Not finished:** {cell.name}: {why}" for cell in study.cells if (why := missing(cell))]
    lines += [f"- **Problem:** {problem}" for problem in study.problems]
    lines += [""] if lines else []
    groups: dict[str, list[Condition]] = {}
    for one in conditions_of(study.cells):
        groups.setdefault(", ".join(f"{key} {value}" for key, value in one.others.items()), []).append(one)
    for title, conditions in groups.items():
        lines += [f"## {title}", ""] if title else []
        lines += ResultTable(conditions, columns, figures).lines()
        lines += [*(f"- {sentence}" for sentence in (*headline(conditions), *_cheap(conditions), *cautions(conditions))), ""]
    return lines


def _cheap(conditions: Sequence[Condition]) -> list[str]:
    """Which defenses cost little and hold."""
    defended = [one for one in conditions if not one.undefended and one.attackers]
    found = [f"`{one.defense}`" for one in defended if verdict_of(one).holds and (mean(list(one.pmm.values())) or 0.0) >= KEPT]
    words = (
        f"of {len(defended)} defended settings keep {KEPT:.0%} of the undefended accuracy and every attacker within the limits"
    )
    return [f"{len(found)} {words}{': ' if found else ''}{', '.join(found)}."] if defended else []


def page(text: str, study: Study, figures: Sequence[Figures], made: Sequence[str]) -> str:
    """A text with the results in the place that it marks, and below its title how they were made."""
    marker, title = MARKER.search(text), re.match(r"# .*\n", text)
    if marker is None or title is None:
        raise RunError("the text needs a title in its first line, and a line such as <!-- results: accuracy, psnr -->")
    found = "\n".join(results(study, marker[1].split(","), figures))
    head = "\n".join([title[0], *made, ""])
    return head + text[title.end() : marker.start()] + found.rstrip() + text[marker.end() :].rstrip() + f"\n{LEGEND}\n"
