"""The plan of a sweep: its cells, and the runs and attacks that they are made of, each once however many cells need it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fl_app.core import spec
from fl_app.experiment.config import Experiment
from fl_app.store.files import write_atomic
from fl_app.sweeps.file import Sweep


class Attacking(NamedTuple):
    """One attack as it is asked for, with all that changes its results."""

    attack: str
    grants: tuple[str, ...]
    informed: bool
    lpips: bool
    noise_ratio: bool
    judge: str
    """The folder of the run, within the sweep, whose trained network looks at the reconstructions; empty: none does."""
    metrics: tuple[str, ...] = ()
    """Metrics from outside the package."""


@dataclass(frozen=True)
class Unit:
    """One piece of work that is done or not: a run, or an attack on a run."""

    name: str
    folder: Path
    """Of the sweep."""
    experiment: Experiment
    attacking: Attacking | None = None
    needs: tuple[str, ...] = ()
    """The runs that have to be there first."""

    @property
    def place(self) -> str:
        """The folder of its run, within the sweep."""
        return str(Path(self.experiment.run_dir).relative_to(self.folder))

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
                "training": cell.training.place,
                "attacked": cell.attacked.place,
                "failed": cell.failed,
            }
            for cell in self.cells
        ]
        resolved = self.sweep.model_dump(by_alias=True)
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


def undefended(defense: str) -> bool:
    """Whether a defense is none."""
    return all(part.name == "none" for part in spec.parse(defense))


def label(varied: Mapping[str, Any]) -> str:
    """What a combination of settings is called: its defense, and what else differs."""
    others = [f"{key}={value}" for key, value in varied.items() if key != "defense"]
    return ", ".join([str(varied["defense"]), *others])
