"""The results of a sweep as one table: what each setting costs and leaks, over all its seeds."""

from collections.abc import Iterable
from typing import NamedTuple

from rich.markup import escape
from rich.table import Table

from fl_app.analysis.results import AttackResult, CellResult
from fl_app.scoring.score import Summary, summarize
from fl_app.sweeps.plan import label, undefended

METRICS = {"psnr": 1, "ssim": 2, "lpips_alex": 2}
"""Metric -> digits that are shown."""


class Attacker(NamedTuple):
    """What one attacker reached over all targets of all seeds."""

    who: str
    scores: dict[str, Summary]


class Line(NamedTuple):
    """One setting under one attack."""

    setting: str
    attack: str
    seeds: int
    accuracy: float | None
    pmm: float | None
    """Accuracy in percent of that of the undefended run with the same seed and other settings, mean over seeds."""
    naive: Attacker | None
    informed: Attacker | None
    """The one that was worst for the defense, by mean PSNR."""
    seconds: float | None
    """Of a cell, mean over seeds."""
    failed: int
    """Cells that could not be finished."""


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def lines_of(cells: list[CellResult]) -> list[Line]:
    """One line a setting and attack, in the order of the cells."""
    accuracy = {(label(cell.varied), cell.seed): _accuracy(cell) for cell in cells}
    groups: dict[str, list[CellResult]] = {}
    for cell in cells:
        groups.setdefault(label(cell.varied), []).append(cell)
    plain = {str(cell.varied["defense"]) for cell in cells if undefended(str(cell.varied["defense"]))}

    def pmm(cell: CellResult) -> float | None:
        without = (accuracy.get((label({**cell.varied, "defense": none}), cell.seed)) for none in plain)
        base, own = next((value for value in without if value), None), _accuracy(cell)
        return None if base is None or own is None else 100 * own / base

    found = []
    for setting, members in groups.items():
        done = [cell for cell in members if cell.failed is None]
        attacks = [attack for cell in done if cell.attacked for attack in cell.attacked.attacks]
        for asked in dict.fromkeys(attack.asked for attack in attacks) or [""]:
            attackers = _attackers([attack for attack in attacks if attack.asked == asked])
            informed = [one for one in attackers if one.who.startswith("adaptive")]
            found.append(
                Line(
                    setting,
                    asked,
                    len(done),
                    mean(_accuracy(cell) for cell in done),
                    mean(pmm(cell) for cell in done),
                    next((one for one in attackers if one.who in ("attack", "naive")), None),
                    max(informed, key=_reach, default=None),
                    mean(_seconds(cell) for cell in done),
                    len(members) - len(done),
                )
            )
    return found


def _accuracy(cell: CellResult) -> float | None:
    found = cell.training.last.get("accuracy") if cell.training else None
    return None if found is None else float(found)


def _seconds(cell: CellResult) -> float | None:
    if cell.training is None or not cell.training.metrics:
        return None
    attacked = [attack.seconds or 0.0 for attack in cell.attacked.attacks] if cell.attacked else []
    return float(cell.training.metrics[-1]["seconds"]) + sum(attacked)


def _attackers(attacks: list[AttackResult]) -> list[Attacker]:
    """The attackers by name, each over all seeds."""
    found = []
    for who in dict.fromkeys(attack.who for attack in attacks):
        rows = [row for attack in attacks if attack.who == who for row in attack.rows]
        scores = {name: summarize([None if row is None else {name: row.get(name)} for row in rows], name) for name in METRICS}
        found.append(Attacker(who, scores))
    return found


def _reach(attacker: Attacker) -> float:
    reached = attacker.scores["psnr"].mean
    return float("-inf") if reached is None else reached


def _shown(attacker: Attacker | None) -> str:
    if attacker is None:
        return "-"
    values = [
        "-" if (value := attacker.scores[name].mean) is None else f"{value:.{digits}f}" for name, digits in METRICS.items()
    ]
    failed = attacker.scores["psnr"].failed
    variant = attacker.who.partition(": ")[2]
    return " ".join(values) + (f" {variant}" if variant else "") + (f" ({failed} failed)" if failed else "")


def table_of(lines: list[Line]) -> Table:
    """The lines for a terminal."""
    one_attack = len({line.attack for line in lines if line.attack}) < 2
    table = Table("defense", *([] if one_attack else ["attack"]), "seeds", box=None, header_style="bold", padding=(0, 1, 0, 0))
    for name in ("accuracy", "PMM", "naive:\nPSNR SSIM LPIPS", "worst informed:\nPSNR SSIM LPIPS", "s"):
        table.add_column(name, no_wrap=True)
    for line in lines:
        cells = [
            str(line.seeds) + (f", [red]{line.failed} failed[/red]" if line.failed else ""),
            "-" if line.accuracy is None else f"{line.accuracy:.3f}",
            "-" if line.pmm is None else f"{line.pmm:.1f} %",
            _shown(line.naive),
            _shown(line.informed),
            "-" if line.seconds is None else f"{line.seconds:.0f}",
        ]
        table.add_row(escape(line.setting), *([] if one_attack else [escape(line.attack)]), *cells)
    return table
