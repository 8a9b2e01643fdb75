"""What runs and sweeps came to, read back from their directories: the one source of reports, exports, tables and gates.

A damaged file is named in `problems` and left out; nothing is computed here that is not on disk.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fl_app.analysis.audit_dp import Audit
from fl_app.analysis.bounds.results import Bounds
from fl_app.core.errors import said
from fl_app.core.plugins import NotAllowed
from fl_app.experiment.config import Experiment
from fl_app.experiment.runs import experiment_of
from fl_app.scoring.base import Measure
from fl_app.scoring.metrics import METRICS
from fl_app.scoring.target import Row, TargetScore, values_of
from fl_app.store.files import RunError
from fl_app.store.lines import read_lines
from fl_app.store.runs import RunDir

T = TypeVar("T")
SPENT = ("sent_bytes", "received_bytes", "clients_seconds")
"""What a round spends beside its own seconds, by the names in metrics.jsonl."""
WORST_MEMBER = "worst member by truth"
"""Whose figures these are: no attacker knows which of its members is closest, but a defense must hold against each."""


class AttackResult(NamedTuple):
    """One attack on the captures of a run, as scored."""

    folder: Path
    asked: str
    """The attack as asked for; the informed ones derived from it have the same."""
    attack: str
    """The attack as it was run."""
    who: str
    """'attack' (nothing to know), 'naive', 'informed' or 'informed: ' with the name of a variant."""
    grants: tuple[str, ...]
    targets: list[TargetScore]
    floors: dict[str, list[Row]]
    """Blind floors on the same targets; empty for informed attackers, whose naive twin has them."""
    seconds: float | None
    measures: dict[str, Measure]
    """Plugged-in metrics, as metrics.json describes them."""
    by_truth: bool = False
    """Whether the figures are those of the worst member on each target, and not what the attack answered."""
    question: str = ""
    """What it was asked, where it does not rebuild examples."""

    @property
    def ledger(self) -> str:
        """What the attacker was told beyond the protocol."""
        told = next((one.ledger for one in self.targets if one.done), "")
        return told or ", ".join(self.grants) or "nothing"

    @property
    def views(self) -> "list[AttackResult]":
        """What it answered, and, where it has members, what the worst of them reached on each target by truth."""
        if not any(one.by_truth for one in self.targets):
            return [self]
        who = WORST_MEMBER if self.who == "attack" else f"{self.who}, {WORST_MEMBER}"
        worst = [one.at_worst for one in self.targets]
        return [self, self._replace(who=who, targets=worst, floors={}, seconds=None, by_truth=True)]


@dataclass(frozen=True)
class RunResult:
    """One run."""

    path: Path
    experiment: Experiment
    metrics: list[dict[str, Any]]
    attacks: list[AttackResult]
    environment: dict[str, str]
    problems: list[str] = field(default_factory=list)
    bounds: Bounds | None = None
    """What no attack on it can do, if `thorns bound` was run."""
    audit: Audit | None = None
    """What canaries say of its epsilon, if `thorns audit-dp` was run."""

    @property
    def last(self) -> dict[str, Any]:
        """The line of the last evaluated round; empty if there is none."""
        return next((line for line in reversed(self.metrics) if "accuracy" in line), {})

    @property
    def rounds_done(self) -> int:
        """How many rounds are recorded."""
        return int(self.metrics[-1]["round"]) if self.metrics else 0

    @property
    def seconds_a_round(self) -> float | None:
        """Mean duration of a round, evaluation included; the clock starts anew when a run is resumed."""
        times = [(line["round"], line["seconds"]) for line in self.metrics]
        steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(times) if b[1] >= a[1]]
        rounds = sum(step for step, _ in steps)
        return sum(seconds for _, seconds in steps) / rounds if rounds else None

    def cost_a_round(self, key: str) -> float | None:
        """Mean of what a round spent, one of SPENT; None of a run that did not count."""
        found = [float(line[key]) for line in self.metrics if key in line]
        return sum(found) / len(found) if found else None


class CellResult(NamedTuple):
    """One cell of a comparison or sweep: a trained run, and the run whose captures were attacked (may be the same)."""

    name: str
    varied: dict[str, Any]
    """The settings in which the cells differ, seed left out."""
    seed: int
    training: RunResult | None
    attacked: RunResult | None
    failed: str | None
    """Why it could not be finished."""

    @property
    def attacks(self) -> list[AttackResult]:
        """The scored attacks."""
        return self.attacked.attacks if self.attacked else []

    @property
    def unattacked(self) -> str | None:
        """Why it has no scored attack, if it has none."""
        if self.failed is not None:
            return self.failed
        return None if self.attacks else "no scored attack"


@dataclass(frozen=True)
class Study:
    """A run, or the cells of a comparison or sweep."""

    path: Path
    kind: str
    """'run' or 'sweep'."""
    title: str
    cells: list[CellResult]
    command: str
    """What repeats it."""

    @property
    def measures(self) -> dict[str, Measure]:
        """Every metric that there is, and those that were plugged in."""
        return {**METRICS, **measures_of(self.cells)}

    @property
    def problems(self) -> list[str]:
        """Files that could not be read, over all runs."""
        runs = [run for cell in self.cells for run in (cell.training, cell.attacked) if run is not None]
        return list(dict.fromkeys(problem for run in runs for problem in run.problems))


def read_run(path: Path) -> RunResult:
    """Read one run; RunError if it is none."""
    run, problems = RunDir.open(path), list[str]()
    attacks = []
    for folder in sorted((path / "attacks").glob("*/scores.jsonl")):
        try:
            attacks.append(read_attack(folder.parent))
        except RunError as error:
            problems.append(str(error))
    environment: dict[str, str] = {}
    told = path / "environment.json"
    try:  # runs of `flwr run` or of an older version have none
        environment = {key: str(value) for key, value in _object(told).items()} if told.exists() else {}
    except RunError as error:
        problems.append(str(error))
    bounds, audit = None, None
    try:
        bounds = Bounds.load(path)
    except RunError as error:
        problems.append(str(error))
    try:
        audit = Audit.load(path)
    except RunError as error:
        problems.append(str(error))
    return RunResult(path, experiment_of(run), run.metrics(), attacks, environment, problems, bounds, audit)


def read_attack(folder: Path) -> AttackResult:
    """Read what was scored of one attack; RunError if it is damaged."""
    about = _object(folder / "attack.json")
    for key, kind in {"asked": str, "attack": str, "who": str, "grants": list}.items():
        if not isinstance(about.get(key), kind):
            raise RunError(f"{folder / 'attack.json'}: {key} must be {kind.__name__}, not {about.get(key)!r}")
    floors: dict[str, list[Row]] = {}
    for name, row in _each(folder / "floors.jsonl", lambda line: (str(line["floor"]), values_of(line))):
        floors.setdefault(name, []).append(row)
    described = folder / "metrics.json"
    try:
        measures = {key: Measure.from_dict(facts) for key, facts in _object(described).items()} if described.exists() else {}
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{described} does not describe metrics: {_named(error)}") from error
    targets = _each(folder / "scores.jsonl", TargetScore.from_dict)
    for key in {key for one in targets for key in one.values} - METRICS.keys() - measures.keys():
        measures[key] = Measure(title=key, higher_leaks=True, shown="files")  # nobody says what it is
    timing = _each(folder / "timing.jsonl", lambda line: float(line["seconds"]), whole=False)
    told = about["asked"], about["attack"], about["who"], tuple(about["grants"])
    seconds, question = sum(timing) if timing else None, str(about.get("question", ""))
    return AttackResult(folder, *told, targets, floors, seconds, measures, question=question)


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {said(error)}") from error
    if not isinstance(found, dict):
        raise RunError(f"{path} does not hold an object")
    return found


def _named(error: Exception) -> str:
    """What is wrong with an object that was read: a KeyError says no more than the key that is missing."""
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def _each(path: Path, read: Callable[[dict[str, Any]], T], *, whole: bool = True) -> list[T]:
    """What is read of each line of a file, if it is there; what cannot be read is named with its line."""
    found = []
    for number, line in enumerate(read_lines(path, whole=whole), 1):
        try:
            found.append(read(line))
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}, entry {number}: {_named(error)}") from None
    return found


def measures_of(cells: Iterable[CellResult]) -> dict[str, Measure]:
    """The metrics of some cells that are not registered, as they were described when they were computed."""
    return {name: measure for cell in cells for attack in cell.attacks for name, measure in attack.measures.items()}


def read_study(path: Path) -> Study:
    """Read a run directory or a sweep directory."""
    if (path / "plan.json").is_file():
        return _sweep(path)
    if not (path / "experiment.toml").is_file():
        raise RunError(f"{path} is neither a run (experiment.toml) nor a sweep (plan.json)")
    run = read_run(path)
    experiment = run.experiment
    cell = CellResult(path.name, {"defense": experiment.defense}, experiment.seed, run, run, None)
    command = run.environment.get("command", f"thorns run --config {path.name}/experiment.toml")
    return Study(path, "run", path.name, [cell], command)


def _sweep(path: Path) -> Study:
    """A sweep: plan.json names its cells, each with the folders of its runs and of what failed."""
    known = path / "plan.json"
    try:
        plan = _object(known)
        reader = _Cells(path)
        return Study(path, "sweep", str(plan["title"]), [reader.cell(**cell) for cell in plan["cells"]], str(plan["command"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, RunError | NotAllowed):
            raise
        raise RunError(f"{known} is not the plan of a sweep: {_named(error)}") from None


class _Cells:
    """Reads the cells of a sweep, each run once."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.seen: dict[str, RunResult | None] = {}

    def cell(self, name: str, varied: dict[str, Any], seed: int, training: str, attacked: str, failed: str) -> CellResult:
        """One cell of plan.json."""
        why = self.within(failed)
        reason = str(_object(why)["reason"]) if why.exists() else None
        return CellResult(name, dict(varied), seed, self.run(training), self.run(attacked), reason)

    def run(self, place: str) -> RunResult | None:
        """The run in a folder; None if it was not started."""
        folder = self.within(place)
        if place not in self.seen:
            self.seen[place] = read_run(folder) if (folder / "experiment.toml").is_file() else None
        return self.seen[place]

    def within(self, place: str) -> Path:
        """A path of the sweep; one outside of it is refused."""
        found = (self.path / place).resolve()
        if not found.is_relative_to(self.path):
            raise RunError(f"{self.path / 'plan.json'} names a path outside the sweep: {place}")
        return found
