"""The results of a sweep as one table: what each setting costs and leaks, over all its seeds."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from fl_app.analysis.attackers import WORST_OF_ALL, Attacker, in_words
from fl_app.analysis.conditions import Condition, Find, conditions_of, mean, measures_shown, missing
from fl_app.analysis.results import WORST_MEMBER, CellResult
from fl_app.analysis.verdict import WEAK, verdict_of
from fl_app.scoring.base import Measure

BY_TRUTH = "by truth"
LEGEND = (
    "means over targets and seeds; PMM: accuracy in percent of the undefended one; s: seconds per cell; "
    f"informed: {WORST_OF_ALL}; {BY_TRUTH}: the {WORST_MEMBER}, by which the verdict goes, above it what was answered"
)


class Fitted(NamedTuple):
    """One line per setting and attack, with as many of the measures as a terminal has room for: names go before figures."""

    lines: Sequence[Condition]
    measures: dict[str, Measure]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        for number in range(len(self.measures), -1, -1):
            table = _table(self.lines, dict(list(self.measures.items())[:number]))
            if number <= 1 or _least(console, table) <= options.max_width:
                yield table
                return


def table_of(cells: Sequence[CellResult]) -> Fitted:
    """The table of these cells, in their order, for a terminal."""
    lines = [line for condition in conditions_of(cells) for line in condition.by_attack()]
    return Fitted(lines, measures_shown(lines, "tables"))


def _least(console: Console, table: Table) -> int:
    """The columns without which words would be cut."""
    return Measurement.get(console, console.options.update(max_width=10**4), table).minimum


def _table(lines: Sequence[Condition], measures: dict[str, Measure]) -> Table:
    titles = " ".join(measure.title for measure in measures.values())
    names = ["defense", *(["attack"] if len({line.asked for line in lines if line.asked}) > 1 else []), "seeds", "verdict"]
    figures = ["accuracy", "PMM", f"naive:\n{titles}", f"informed:\n{titles}", "s"]
    rows = [_entries(line, measures, names) for line in lines]
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold", min_width=len(WEAK) // 2 if name == "verdict" else len(name))
    for place, name in enumerate(figures, len(names)):
        widths = [cell_len(part) for text in (name, *(row[place] for row in rows)) for part in text.split("\n")]
        table.add_column(name, no_wrap=True, min_width=max(widths))
    for row in rows:
        table.add_row(*row)
    return table


def _entries(line: Condition, measures: dict[str, Measure], names: Sequence[str]) -> list[str]:
    """The cells of one line; the attack only where it is among the names."""
    accuracy, pmm, seconds = (mean(values) for values in (_values(line.accuracies), _values(line.pmm), _seconds(line)))
    done = [cell for cell in line.cells if not missing(cell)]
    failed = sum(cell.failed is not None for cell in line.cells)
    return [
        escape(line.label),
        *([escape("".join(line.asked))] if "attack" in names else []),
        str(len(done)) + (f", [red]{failed} failed[/red]" if failed else ""),
        verdict_of(line).words,
        "-" if accuracy is None else f"{accuracy:.3f}",
        "-" if pmm is None else f"{100 * pmm:.1f} %",
        _shown({name: line.naive(name) for name in measures}, measures, line.naive),
        _shown({name: line.informed(name) for name in measures}, measures, line.informed, named=True),
        "-" if seconds is None else f"{seconds:.0f}",
    ]


def _values(by_seed: dict[int, float]) -> list[float]:
    return list(by_seed.values())


def _seconds(line: Condition) -> list[float]:
    """Of each cell the training and all attacks on it."""
    found = []
    for cell in line.cells:
        if cell.training is not None and cell.training.metrics:
            attacks = cell.attacked.attacks if cell.attacked else []
            found.append(float(cell.training.metrics[-1]["seconds"]) + sum(attack.seconds or 0.0 for attack in attacks))
    return found


def _shown(found: dict[str, Attacker | None], measures: dict[str, Measure], find: Find, *, named: bool = False) -> str:
    """The means, who reached them if that is not in the head, and how many targets failed; below, the worst members."""
    attackers = list(dict.fromkeys(one for one in found.values() if one is not None))
    if not attackers:
        return "-"
    values = [measures[name].text(one.mean(name) if one else None) for name, one in found.items()]
    who = in_words({measures[name].title: one for name, one in found.items()}).replace("informed: ", "") if named else ""
    failed = max(one.failed for one in attackers)
    words = " ".join(values) + (f" {who}" if who not in ("", "informed") else "") + (f" ({failed} failed)" if failed else "")
    worst = {name: find(name, by_truth=True) for name in measures}
    if any(one is not None and one.by_truth for one in worst.values()):
        words += f"\n{' '.join(measures[name].text(one.mean(name) if one else None) for name, one in worst.items())} {BY_TRUTH}"
    return escape(words)
