"""The plan of a sweep: its cells, and the runs and attacks that they are made of, each once however many cells need it."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fl_app.core import spec
from fl_app.experiment.config import ConfigError, Experiment, from_run_config
from fl_app.store.files import RunError, write_atomic
from fl_app.sweeps.file import Sweep
from fl_app.sweeps.grid import points, values_of

MOST = 10_000
"""More cells than this are a slip of the pen."""
UNSEEN = {"capture": "none", "capture-clients": "all", "visibility": "individual"}
"""What a training does not depend on if other clients are attacked."""


class Attacking(NamedTuple):
    """One attack as it is asked for, with all that changes its results."""

    attack: str
    grants: tuple[str, ...]
    adaptive: bool
    lpips: bool
    noise_ratio: bool


@dataclass(frozen=True)
class Unit:
    """One piece of work that is done or not: a run, or an attack on a run."""

    name: str
    folder: Path
    """Of the sweep."""
    experiment: Experiment
    attacking: Attacking | None = None
    needs: str = ""
    """The run that has to be there first."""

    @property
    def record(self) -> Path:
        """Its being there says that the unit is finished; holds the seconds that it took."""
        return self.folder / "work" / f"{self.name}.json"

    @property
    def seconds(self) -> float | None:
        """How long it took; None if it is not finished."""
        try:
            return float(json.loads(self.record.read_text(encoding="utf-8"))["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Cell(NamedTuple):
    """One combination of settings and seed, with the names of its units."""

    name: str
    varied: dict[str, Any]
    seed: int
    training: Unit
    attacked: Unit
    attacks: tuple[Unit, ...]

    @property
    def units(self) -> tuple[Unit, ...]:
        """All that has to be finished for it."""
        runs = (self.training,) if self.training == self.attacked else (self.training, self.attacked)
        return (*runs, *self.attacks)

    @property
    def failed(self) -> str:
        """Where it is kept why it failed, within the sweep."""
        return f"failed/{self.training.name}-{self.attacked.name.rpartition('-')[2]}.json"


@dataclass(frozen=True)
class Plan:
    """All that a sweep does, checked."""

    sweep: Sweep
    folder: Path
    command: str
    cells: list[Cell]
    notes: list[str]

    @property
    def units(self) -> list[Unit]:
        """Every unit once, in the order in which cells need them."""
        return list({unit.name: unit for cell in self.cells for unit in cell.units}.values())

    def save(self, text: str) -> None:
        """Write plan.json, and sweep.toml as it was given."""
        self.folder.mkdir(parents=True, exist_ok=True)
        cells = [
            {
                "name": cell.name,
                "varied": cell.varied,
                "seed": cell.seed,
                "training": _within(cell.training),
                "attacked": _within(cell.attacked),
                "failed": cell.failed,
            }
            for cell in self.cells
        ]
        resolved = {**self.sweep.model_dump(by_alias=True), "attacks": self.sweep.asked}
        plan = {"title": self.sweep.title, "command": self._first_command(text), "sweep": resolved, "cells": cells}
        write_atomic(self.folder / "plan.json", json.dumps(plan, indent=1))
        write_atomic(self.folder / "sweep.toml", text)

    def _first_command(self, text: str) -> str:
        """What began this very sweep, if it goes on now."""
        try:
            if (self.folder / "sweep.toml").read_text(encoding="utf-8") == text:
                return str(json.loads((self.folder / "plan.json").read_text(encoding="utf-8"))["command"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return self.command


def _within(unit: Unit) -> str:
    return str(Path(unit.experiment.run_dir).relative_to(unit.folder))


def undefended(defense: str) -> bool:
    """Whether a defense is none."""
    return all(part.name == "none" for part in spec.parse(defense))


def label(varied: Mapping[str, Any]) -> str:
    """What a combination of settings is called: its defense, and what else differs."""
    others = [f"{key}={value}" for key, value in varied.items() if key != "defense"]
    return ", ".join([str(varied["defense"]), *others])


def make_plan(sweep: Sweep, folder: Path, source: str, command: str) -> Plan:
    """Expand a sweep into cells, every one of them checked; `source` is the file that a complaint names."""
    folder, notes = folder.resolve(), list[str]()
    # Hidden files are our own lock, and what a killed sweep had half written.
    strange = [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
    if (strange and not (folder / "plan.json").exists()) or (folder / "experiment.toml").exists():
        raise RunError(f"{folder} holds something else than a sweep: choose another folder with --out")
    run, targets = ({key: values_of(value) for key, value in (given or {}).items()} for given in (sweep.run, sweep.targets))
    defenses = run.pop("defense", ["none"])
    for text in [*defenses, *targets.get("defense", [])]:
        _checked({"defense": text}, f"{source}: ")
    if not any(undefended(text) for text in defenses):
        defenses = ["none", *defenses]
        notes.append("the undefended baseline was added, for what a defense costs is measured against it")
    grid: dict[str, list[Any]] = {"defense": defenses, **run, **{f"targets.{key}": value for key, value in targets.items()}}
    number = len(sweep.seeds)
    for values in grid.values():
        number *= len(values)
    if number > MOST:
        raise ConfigError(f"{source}: these are {number} cells, more than {MOST}: shorten some lists")
    varies = ["defense", *(key for key, values in grid.items() if len(values) > 1 and key != "defense")]
    cells: dict[tuple[str, str], Cell] = {}
    # Seed by seed: the first results shall show every setting.
    for seed in sweep.seeds:
        for point in points(grid):
            cell = _cell(sweep, folder, source, {key: point[key] for key in varies}, point, seed)
            cells.setdefault((cell.training.name, cell.attacked.name), cell)
    return Plan(sweep, folder, command, list(cells.values()), notes)


def _cell(sweep: Sweep, folder: Path, source: str, varied: dict[str, Any], point: dict[str, Any], seed: int) -> Cell:
    where = f"{source}, cell {label(varied)}: "
    settings = {key: value for key, value in point.items() if not key.startswith("targets.")} | {"seed": seed}
    given = {key.removeprefix("targets."): value for key, value in point.items() if key.startswith("targets.")}
    apart = sweep.targets is not None
    attacked = _unit(folder, _checked({**settings, **given}, where), "targets" if apart else "training")
    training = _unit(folder, _checked({**settings, **UNSEEN}, where), "training") if apart else attacked
    if sweep.attacks and not attacked.experiment.captured_rounds:
        table = "[targets]" if apart else "[run]"
        raise ConfigError(f'{where}nothing is kept for the attacks: add capture = "1" (or "all", "1-5") to {table}')
    attacks = tuple(
        _attack(attacked, Attacking(text, sweep.grants, sweep.adaptive, sweep.lpips, sweep.noise_ratio)) for text in sweep.asked
    )
    return Cell(f"{label(varied)}, seed {seed}", varied, seed, training, attacked, attacks)


def _checked(settings: dict[str, Any], where: str) -> Experiment:
    """The experiment, or an error that says where it was asked for and names the setting at fault."""
    try:
        return from_run_config({**Experiment().run_config(), **settings})
    except ConfigError as error:
        for key, value in settings.items():  # some complaints do not name their setting
            try:
                from_run_config({key: value})
            except ConfigError as alone:
                if str(alone) == str(error) and not str(error).startswith(f"{key} = "):
                    raise ConfigError(f"{where}{key} = {value!r}: {error}") from None
        raise ConfigError(f"{where}{error}") from None


def _digest(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=5).hexdigest()


def _unit(folder: Path, experiment: Experiment, kind: str) -> Unit:
    """A run in a folder that its settings name: equal settings are one run, also if the sweep file changes."""
    settings = {key: value for key, value in experiment.run_config().items() if key != "run-dir"}
    words = re.sub(r"[^a-z0-9_.]+", "-", experiment.defense.lower()).strip("-")[:40]
    name = f"{words}-s{experiment.seed}-{_digest(settings)}"
    return Unit(name, folder, experiment.changed(run_dir=str(folder / "runs" / name / kind)))


def _attack(run: Unit, attacking: Attacking) -> Unit:
    return Unit(f"{run.name}-attack-{_digest(attacking)}", run.folder, run.experiment, attacking, run.name)
