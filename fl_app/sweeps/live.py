"""What is seen of a sweep while it runs: how far it is, how long it will take, the first results."""

import math
import time
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fl_app.analysis.results import CellResult, RunResult, read_run
from fl_app.sweeps.estimate import Estimator
from fl_app.sweeps.plan import Cell, Plan, Unit
from fl_app.sweeps.table import Fitted, table_of


def spoken(seconds: float) -> str:
    """A duration for people."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def say(console: Console, words: str) -> None:
    """A line as it is: names may hold brackets."""
    console.print(words, markup=False, highlight=False, soft_wrap=True)


class LiveTable:
    """A table that fills on a terminal; one line per finished cell elsewhere."""

    def __init__(self, console: Console, plan: Plan, workers: int) -> None:
        self._console, self._plan, self._workers = console, plan, workers
        self._results: dict[str, CellResult] = {}
        self._table: Fitted | None = None
        self._running: dict[str, float] = {}
        self._estimates: dict[str, float | None] = {}
        self._began, self._done, self._failed = time.monotonic(), 0, 0
        self._live = Live(self, console=console, refresh_per_second=2, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._live:
            self._live.stop()

    def expect(self, waiting: list[Unit], estimator: Estimator) -> None:
        """What is still to be done, and how long each is thought to take."""
        self._estimates = {unit.name: estimator.guess(unit) for unit in waiting}

    def running(self, units: list[Unit]) -> None:
        """What is being done now."""
        now = time.monotonic()
        self._running = {unit.name: self._running.get(unit.name, now) for unit in units}

    def ended(self, cell: Cell, reason: str, *, before: bool = False) -> None:
        """A cell is finished, or failed; `before`: by an earlier sweep."""
        self._done += 1
        self._failed += bool(reason)
        runs = (None, None) if reason else (_read(cell.training), _read(cell.attacked))
        self._results[cell.name] = CellResult(cell.name, cell.varied, cell.seed, *runs, reason or None)
        known = [self._results[one.name] for one in self._plan.cells if one.name in self._results]
        self._table = table_of(known)
        if reason:
            say(self._console, f"failed: {cell.name}: {reason}")
        elif self._live is None and not before:
            accuracy = runs[0].last.get("accuracy") if runs[0] else None
            words = "" if accuracy is None else f": accuracy {accuracy:.3f}"
            left = self.left()
            words += "" if left is None else f"; about {spoken(left)} left"
            say(self._console, f"{self._done}/{len(self._plan.cells)} {cell.name}{words}")

    def left(self) -> float | None:
        """The seconds that are left; None if something is not known."""
        now, total = time.monotonic(), 0.0
        for name, seconds in self._estimates.items():
            if seconds is None:
                return None
            total += max(0.0, seconds - (now - self._running[name] if name in self._running else 0.0))
        return total / self._workers

    def __rich__(self) -> Group:
        left = self.left()
        head = Text.assemble(
            (f"{self._done}/{len(self._plan.cells)} cells", "bold"),
            f", {len(self._running)} at work, {spoken(time.monotonic() - self._began)}",
            "" if left is None else f", about {spoken(left)} left",
            (f", {self._failed} failed" if self._failed else "", "red"),
        )
        at_work = Text("  ".join(self._running), style="dim", no_wrap=True, overflow="ellipsis")
        return Group(head, at_work, *([self._table] if self._table else []))


def _read(unit: Unit) -> RunResult | None:
    path = Path(unit.experiment.run_dir)
    return read_run(path) if path.is_dir() else None
