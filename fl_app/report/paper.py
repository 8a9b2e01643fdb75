"""A paper's own figures, from a CSV file: what they are of, and the values that stand beside ours.

Columns named like settings say which condition a line is of; `attack` how the attack as asked for begins, `stage` which of
the attacked rounds it is, counted from 1. All other columns are values.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fl_app.analysis.conditions import Condition
from fl_app.experiment.config import Experiment
from fl_app.store.files import RunError

OF_ATTACKS = {"attack", "stage"}


class Figures(NamedTuple):
    """One line of a paper's table."""

    settings: dict[str, str]
    """Setting -> its value; a defense without brackets stands for all of its strengths."""
    attack: str
    stage: int | None
    values: dict[str, float]

    def of(self, condition: Condition) -> bool:
        """Whether it is about a condition."""
        told: Mapping[str, Any] = {**_settings(condition), **condition.varied}
        return all(_same(key, wanted, str(told.get(key))) for key, wanted in self.settings.items())

    def by(self, asked: str, stage: int) -> bool:
        """Whether it is about an attack, as it was asked for, on the targets of a stage."""
        return asked.startswith(self.attack) and self.stage in (None, stage)


def _settings(condition: Condition) -> Mapping[str, Any]:
    trained = next(iter(condition.trained.values()), None)
    return trained.experiment.run_config() if trained else {}


def _same(key: str, wanted: str, found: str) -> bool:
    return found == wanted or (key == "defense" and "(" not in wanted and found.partition("(")[0] == wanted)


def read_figures(path: Path) -> list[Figures]:
    """The lines of a file; none if there is no file."""
    if not path.exists():
        return []
    known, found = Experiment().run_config().keys() - OF_ATTACKS, []
    with path.open(encoding="utf-8", newline="") as lines:
        for number, line in enumerate(csv.DictReader(lines, strict=True), 2):
            try:
                values = {key: float(text) for key, text in line.items() if key not in known | OF_ATTACKS and text}
                settings = {key: text for key, text in line.items() if key in known and text}
                stage = int(line["stage"]) if line.get("stage") else None
            except (TypeError, ValueError) as error:
                raise RunError(f"{path}, line {number}: {error}") from None
            found.append(Figures(settings, line.get("attack") or "", stage, values))
    return found


def paper_value(figures: Sequence[Figures], condition: Condition, key: str, asked: str = "", stage: int = 1) -> float | None:
    """What the paper says of a condition, or of an attack on it; None if it says nothing."""
    for one in figures:
        if key in one.values and one.of(condition) and (not asked or one.by(asked, stage)):
            return one.values[key]
    return None
