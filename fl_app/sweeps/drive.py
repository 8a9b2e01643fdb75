"""Doing a plan: which unit is next, what its end means for the cells, and where failures are kept."""

import json

from rich.console import Console

from fl_app.store.files import write_atomic
from fl_app.sweeps.estimate import Estimator
from fl_app.sweeps.live import LiveTable
from fl_app.sweeps.parallel import Ended, Workers
from fl_app.sweeps.plan import Cell, Plan, Unit

LOOK = 0.5
"""Seconds between looks at the workers."""


class Drive:
    """The state of a sweep that is being done."""

    def __init__(self, plan: Plan, estimator: Estimator, view: LiveTable) -> None:
        self.plan, self.estimator, self.view = plan, estimator, view
        self.waiting = [unit for unit in plan.units if unit.seconds is None]
        self.running: list[Unit] = []
        self.failed: dict[str, str] = {}
        """Unit -> why it could not be done."""
        self._open: dict[str, Cell] = {cell.name: cell for cell in plan.cells}

    def work(self, workers: Workers) -> int:
        """Do all units; the number of cells that failed."""
        self._cells_ended(before=True)
        while self.waiting or self.running:
            while workers.free and (unit := self._next()) is not None:
                self.waiting.remove(unit)
                self.running.append(unit)
                workers.begin(unit)
            self._show()
            for ended in workers.wait(LOOK):
                self._ended(ended)
            self._show()
            self._cells_ended()
        return sum((self.plan.folder / cell.failed).exists() for cell in self.plan.cells)

    def _show(self) -> None:
        self.view.running(self.running)
        self.view.expect([*self.waiting, *self.running], self.estimator)

    def _next(self) -> Unit | None:
        """The first unit whose runs are there."""
        undone = {unit.name for unit in [*self.waiting, *self.running]}
        return next((unit for unit in self.waiting if not undone.intersection(unit.needs)), None)

    def _ended(self, ended: Ended) -> None:
        unit = ended.unit
        self.running.remove(unit)
        if not ended.reason:
            self.estimator.learn(unit, unit.seconds or 0.0)
            return
        lost = [other for other in self.waiting if unit.name in other.needs]
        self.waiting = [other for other in self.waiting if other not in lost]
        gone = {unit.name, *(other.name for other in lost)}
        self.failed |= dict.fromkeys(gone, ended.reason)
        for cell in self.plan.cells:
            place = self.plan.folder / cell.failed
            if gone.intersection(one.name for one in cell.units) and not place.exists():
                place.parent.mkdir(exist_ok=True)
                about = {"reason": ended.reason, "unit": unit.name, "trace": ended.trace}
                write_atomic(place, json.dumps(about, indent=1))

    def _cells_ended(self, *, before: bool = False) -> None:
        """Show the cells of which nothing is left to do."""
        undone = {unit.name for unit in [*self.waiting, *self.running]}
        for cell in list(self._open.values()):
            if not undone.intersection(unit.name for unit in cell.units):
                del self._open[cell.name]
                reasons = [self.failed[unit.name] for unit in cell.units if unit.name in self.failed]
                self.view.ended(cell, reasons[0] if reasons else "", before=before)


def work(console: Console, plan: Plan, workers: Workers, number: int, estimator: Estimator) -> int:
    """Do what is open of a plan and show it; the number of cells that failed. Cells that failed before are tried again."""
    for cell in plan.cells:
        (plan.folder / cell.failed).unlink(missing_ok=True)
    with LiveTable(console, plan, number) as view:
        return Drive(plan, estimator, view).work(workers)
