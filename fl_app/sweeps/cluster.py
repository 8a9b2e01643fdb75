"""Units of a sweep on the nodes of a Ray cluster, which share no disk with this machine."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fl_app.cluster.bundle import Bundle, files_in, pack, unpack
from fl_app.cluster.recipes import recipes_for
from fl_app.cluster.team import Done, Team
from fl_app.store.files import RunError
from fl_app.store.runs import SETTINGS, RunDir
from fl_app.sweeps.parallel import Ended, attempt
from fl_app.sweeps.plan import Unit
from fl_app.sweeps.work import finish, journal, perform


class Answer(NamedTuple):
    """How a unit went on a node, and how long it took."""

    reason: str
    trace: str
    seconds: float


def do_there(folder: Path, unit: Unit) -> Answer:
    """Do a unit on a node, in a folder that holds what it needs of the sweep's."""
    moved = replace(unit, folder=folder, experiment=unit.experiment.changed(run_dir=str(folder / unit.place)))
    began = time.monotonic()
    return Answer(*attempt(moved, perform), time.monotonic() - began)


def files_for(unit: Unit) -> Bundle:
    """What a unit needs of the sweep's folder: what is there of its run, without attacks, and the network that judges."""
    run = unit.folder / unit.place
    names = [f"{unit.place}/{name}" for name in files_in(run) if not name.startswith("attacks/")] if run.is_dir() else []
    if unit.attacking and unit.attacking.judge:
        judge = unit.attacking.judge
        names += [f"{judge}/{name}" for name in (SETTINGS, RunDir(unit.folder / judge).checkpoint_path.name)]
    return pack(unit.folder, dict.fromkeys(names))


def keep(unit: Unit, files: Bundle, seconds: float) -> None:
    """Write what a unit made into the sweep's folder; its record comes last, and says that all is there."""
    path = Path(unit.experiment.run_dir)
    if any(not entry.name.startswith(f"{unit.place}/") for entry in files.entries):
        raise RunError(f"a node sent files for {unit.name} that are not of its run")
    if unit.attacking is None:
        shutil.rmtree(path, ignore_errors=True)  # what an earlier try left there; it went along
    unpack(files, unit.folder)
    if unit.attacking is None:
        RunDir(path).keep(unit.experiment.toml())  # the node's names another folder
    finish(unit, seconds)


class Nodes:
    """Does units in processes on nodes: as many CPUs each as it has threads, or its part of a GPU."""

    def __init__(self, number: int, units: Sequence[Unit]) -> None:
        """`number` 0: wherever there is room."""
        experiments = [unit.experiment for unit in units]
        devices = [one.device for one in experiments]
        self._team = Team(
            recipes_for(one.dataset for one in experiments),
            asked=number,
            most=len(units),
            cpus=max(one.threads for one in experiments),
            device="cuda" if "cuda" in devices else "auto" if "auto" in devices else "cpu",
        )
        self.number = self._team.number
        self._units: dict[str, Unit] = {}

    @property
    def free(self) -> int:
        """How many units could begin now."""
        return self._team.free

    def begin(self, unit: Unit) -> None:
        """Send a unit and what it needs to a node."""
        journal(unit, "started")
        self._units[unit.name] = unit
        self._team.begin(unit.name, do_there, unit, files_for(unit))

    def wait(self, seconds: float) -> list[Ended]:
        """Those that ended; what they made is on this disk."""
        return [self._ended(done) for done in self._team.wait(seconds)]

    def _ended(self, done: Done) -> Ended:
        unit = self._units.pop(done.name)
        if done.files is None:
            return Ended(unit, done.trouble, done.trace)
        answer: Answer = done.answer
        if answer.reason:
            return Ended(unit, answer.reason, answer.trace)
        try:
            keep(unit, done.files, answer.seconds)
        except RunError as error:
            return Ended(unit, f"what came back cannot be kept: {error}")
        return Ended(unit)

    def close(self) -> None:
        """End all that runs on nodes."""
        self._team.close()
