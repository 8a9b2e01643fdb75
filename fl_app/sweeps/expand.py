"""From a sweep to its plan: every cell with its runs and attacks, all settings checked."""

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

from fl_app.experiment.config import Experiment, from_run_config
from fl_app.experiment.toml import ConfigError
from fl_app.store.files import RunError
from fl_app.sweeps.file import Sweep, Targets
from fl_app.sweeps.grid import points, values_of
from fl_app.sweeps.plan import Attacking, Cell, Plan, Unit, label, undefended

Grid = dict[str, list[Any]]
Point = dict[str, Any]
MOST = 10_000
"""More cells than this are a slip of the pen."""
UNSEEN = {"capture": "none", "capture-clients": "all"}
"""What a training does not depend on if other clients are attacked; nor on visibility, unless that is a protocol."""


def make_plan(sweep: Sweep, folder: Path, source: str, command: str) -> Plan:
    """Expand a sweep into cells, every one of them checked; `source` is the file that a complaint names."""
    folder, notes = folder.resolve(), list[str]()
    # Hidden files are our own lock, and what a killed sweep had half written.
    strange = [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
    if (strange and not (folder / "plan.json").exists()) or (folder / "experiment.toml").exists():
        raise RunError(f"{folder} holds something else than a sweep: choose another folder with --out")
    grids = {name: _grid(given, source, notes) for name, given in sweep.runs.items()}
    kinds = [(one, {key: values_of(value) for key, value in (one.settings or {}).items()}) for one in sweep.attacked]
    number = sum(_size(grid) * _size(own) for name, grid in grids.items() for one, own in kinds if name in one.runs)
    if number * len(sweep.seeds) > MOST:
        raise ConfigError(f"{source}: these are {number * len(sweep.seeds)} cells, more than {MOST}: shorten some lists")
    varies = _varies(list(grids.values()))
    cells: dict[tuple[str, ...], Cell] = {}
    # Seed by seed: the first results must show every setting.
    for seed in sweep.seeds:
        for name, grid in grids.items():
            plain = next(text for text in grid["defense"] if undefended(text))
            for point in points(grid):
                for targets, own in kinds:
                    for given in points(own) if name in targets.runs else []:
                        varied = {key: point.get(key, default) for key, default in varies.items()}
                        varied |= {"targets": targets.name} if len(kinds) > 1 else {}
                        varied |= {f"targets.{key}": given[key] for key, values in own.items() if len(values) > 1}
                        maker = _Maker(sweep, folder, f"{source}, cell {label(varied)}: ", targets, plain)
                        cell = maker.cell(varied, {**point, "seed": seed}, given)
                        cells.setdefault(tuple(unit.name for unit in cell.units), cell)
    return Plan(sweep, folder, command, list(cells.values()), list(dict.fromkeys(notes)))


def _size(grid: Grid) -> int:
    return math.prod(len(values) for values in grid.values())


def _grid(given: Point, source: str, notes: list[str]) -> Grid:
    """The values of each setting, the defense first, the undefended one among them."""
    grid = {key: values_of(value) for key, value in given.items()}
    defenses = grid.pop("defense", ["none"])
    for text in defenses:
        _checked({"defense": text}, f"{source}: ")
    if not any(undefended(text) for text in defenses):
        defenses = ["none", *defenses]
        notes.append("the undefended baseline was added, for what a defense costs is measured against it")
    return {"defense": defenses, **grid}


def _varies(grids: list[Grid]) -> Point:
    """The settings that differ between cells, the defense first, with the value of those who do not say it."""
    defaults = Experiment().run_config()
    keys = dict.fromkeys(key for grid in grids for key in grid if key != "defense")
    several = [key for key in keys if len(values_of([one for grid in grids for one in grid.get(key, [defaults[key]])])) > 1]
    return {key: defaults[key] for key in ("defense", *several)}


class _Maker:
    """Makes the cells of one kind of targets."""

    def __init__(self, sweep: Sweep, folder: Path, where: str, targets: Targets, plain: str) -> None:
        self.sweep, self.folder, self.where, self.targets, self.plain = sweep, folder, where, targets, plain
        self.apart = targets.settings is not None

    def cell(self, varied: Point, settings: Point, given: Point) -> Cell:
        """One combination: `settings` of the training, and those `given` of who is attacked instead."""
        training = self.training(settings)
        name = self.targets.name
        attacked = self._run({**settings, **given}, name or "targets", name) if self.apart else training
        if self.targets.attacks and not attacked.experiment.captured_rounds:
            table = f"[targets{name and f'.{name}'}]" if self.apart else "[run]"
            raise ConfigError(f'{self.where}nothing is kept for the attacks: add capture = "1" (or "all", "1-5") to {table}')
        judge = [self.training({**settings, "defense": self.plain})] if self.sweep.judge else []
        attacks = [self._attack(text, attacked, judge) for text in self.targets.attacks]
        return Cell(f"{label(varied)}, seed {settings['seed']}", varied, settings["seed"], training, attacked, tuple(attacks))

    def training(self, settings: Point) -> Unit:
        """The run whose accuracy counts."""
        limited = settings.get("visibility") == "aggregate"
        unseen = {**UNSEEN, **({"visibility": "individual"} if limited else {})}
        return self._run({**settings, **unseen} if self.apart else settings, "training")

    def _run(self, settings: Point, kind: str, *more: str) -> Unit:
        """A run in a folder that its settings name: equal settings are one run, also if the sweep file changes."""
        experiment = _checked(settings, self.where)
        told = {key: value for key, value in experiment.run_config().items() if key != "run-dir"}
        words = re.sub(r"[^a-z0-9_.]+", "-", experiment.defense.lower()).strip("-")[:40]
        name = f"{words}-s{experiment.seed}-{_digest(told, *filter(None, more))}"
        return Unit(name, self.folder, experiment.changed(run_dir=str(self.folder / "runs" / name / kind)))

    def _attack(self, text: str, run: Unit, judge: list[Unit]) -> Unit:
        sweep, places = self.sweep, "".join(unit.place for unit in judge)
        told, own = self.targets, tuple(sweep.metrics)
        attacking = Attacking(text, told.grants, told.informed, sweep.lpips, sweep.noise_ratio, places, own)
        needs = (run.name, *(unit.name for unit in judge))
        return Unit(f"{run.name}-attack-{_digest(attacking)}", run.folder, run.experiment, attacking, needs)


def _checked(settings: Point, where: str) -> Experiment:
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
