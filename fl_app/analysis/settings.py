"""The rows of a report: each setting of a study with its cells of all seeds, and the attackers on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fl_app.analysis.measures import PSNR, Measure
from fl_app.analysis.results import AttackResult, CellResult, RunResult, Study
from fl_app.core import spec
from fl_app.scoring.score import Row, Summary, summarize

APART = ("dataset", "split", "partition", "model")
"""Settings between which accuracies are not compared: each combination has its own curves."""


class Attacker:
    """One attacker on one setting, the targets of all seeds together."""

    def __init__(self, parts: Sequence[tuple[RunResult, AttackResult]]) -> None:
        self.parts = list(parts)
        first = parts[0][1]
        self.asked, self.attack, self.who = first.asked, first.attack, first.who
        self.ledger = first.ledger.removesuffix(" beyond the protocol")
        self.visibility = parts[0][0].experiment.visibility

    @property
    def informed(self) -> bool:
        """Whether it was told of the defense."""
        return self.who.startswith("adaptive")

    @property
    def name(self) -> str:
        """Who it is in a word or two, with the attack's name."""
        return f"{self.who}, {self.asked.partition('(')[0]}" if self.who != "attack" else self.asked.partition("(")[0]

    @property
    def targets(self) -> list[tuple[RunResult, AttackResult, dict[str, Any]]]:
        """Every target that was attacked, failed ones included, with where it comes from."""
        return [(run, part, line) for run, part in self.parts for line in part.lines]

    def summary(self, measure: str, server_round: int | None = None) -> Summary:
        """A metric over all targets, or over those of one round; failed targets are counted, not averaged."""
        lines = [line for _, _, line in self.targets if server_round in (None, line.get("round"))]
        done = [line if line.get("status") == "done" else None for line in lines]
        return summarize([None if line is None else {measure: line.get(measure)} for line in done], measure)

    @property
    def rounds(self) -> list[int]:
        """The rounds of the targets."""
        return sorted({int(line["round"]) for _, _, line in self.targets})

    @property
    def seconds(self) -> float | None:
        """Time of the attack in all; None if it was not taken."""
        times = [part.seconds for _, part in self.parts if part.seconds is not None]
        return sum(times) if times else None

    def floors(self) -> dict[str, list[Row]]:
        """The blind guesses on the same targets."""
        found: dict[str, list[Row]] = {}
        for _, part in self.parts:
            for name, rows in part.floors.items():
                found.setdefault(name, []).extend(rows)
        return found


def _worst(attackers: Sequence[Attacker], measure: Measure = PSNR) -> Attacker | None:
    found = [(measure.leak(mean), one) for one in attackers if (mean := one.summary(measure.key).mean) is not None]
    return max(found, key=lambda pair: pair[0])[1] if found else None


@dataclass(frozen=True)
class Setting:
    """What was varied, seeds left out, and what it came to."""

    number: int
    """Its row in the summary."""
    varied: dict[str, Any]
    cells: list[CellResult]
    baseline: dict[int, float]
    """Seed -> accuracy of the undefended cell that differs in nothing else."""

    @property
    def defense(self) -> str:
        """The defense, as varied or as the runs have it."""
        runs = [run for cell in self.cells for run in (cell.training, cell.attacked) if run is not None]
        return str(self.varied.get("defense", runs[0].experiment.defense if runs else "none"))

    @property
    def family(self) -> str:
        """The defense without its strengths."""
        return _family(self.defense)

    @property
    def undefended(self) -> bool:
        """Whether there is no defense."""
        return self.family == "none"

    @property
    def label(self) -> str:
        """The setting in words: the defense, and what else was varied."""
        return ", ".join([self.defense, *(f"{key}={value}" for key, value in self.others.items())])

    @property
    def others(self) -> dict[str, Any]:
        """What was varied beside the defense."""
        return {key: value for key, value in self.varied.items() if key != "defense"}

    @property
    def apart(self) -> str:
        """What it must share with others to be compared with them."""
        return ", ".join(f"{key}={self.varied[key]}" for key in APART if key in self.varied)

    @cached_property
    def attackers(self) -> list[Attacker]:
        """Who attacked it; a run that serves several cells counts once."""
        found: dict[tuple[object, ...], list[tuple[RunResult, AttackResult]]] = {}
        runs = {cell.attacked.path: cell.attacked for cell in self.cells if cell.attacked is not None}
        for run in runs.values():
            for attack in run.attacks:
                found.setdefault((attack.asked, attack.who, attack.grants), []).append((run, attack))
        return [Attacker(parts) for parts in found.values()]

    @cached_property
    def naive(self) -> Attacker | None:
        """The worst attacker who was not told of the defense, by mean PSNR."""
        return _worst([one for one in self.attackers if not one.informed])

    @cached_property
    def informed(self) -> Attacker | None:
        """The worst attacker who was told of the defense, by mean PSNR."""
        return _worst([one for one in self.attackers if one.informed])

    def worst(self, measure: Measure = PSNR) -> Attacker | None:
        """The attacker to whom most is leaked by a measure."""
        return _worst(self.attackers, measure)

    @cached_property
    def trained(self) -> dict[int, RunResult]:
        """Seed -> the run whose accuracy counts."""
        return {cell.seed: cell.training for cell in self.cells if cell.training is not None}

    @property
    def accuracies(self) -> dict[int, float]:
        """Seed -> accuracy after the last evaluated round."""
        return {seed: float(run.last["accuracy"]) for seed, run in self.trained.items() if run.last}

    @property
    def pmm(self) -> dict[int, float]:
        """Seed -> accuracy over that of the undefended cell (the Refiner paper's performance maintenance)."""
        found = self.accuracies
        return {seed: value / base for seed, value in found.items() if (base := self.baseline.get(seed, 0.0)) > 0}

    @property
    def epsilon(self) -> float | None:
        """The largest composed epsilon at the end over the seeds."""
        return max((float(run.last["epsilon"]) for run in self.trained.values() if "epsilon" in run.last), default=None)

    @property
    def seconds_a_round(self) -> float | None:
        """Mean duration of a training round over the seeds."""
        return mean([seconds for run in self.trained.values() if (seconds := run.seconds_a_round) is not None])


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return sum(values) / len(values) if values else None


def _family(defense: str) -> str:
    try:
        return " + ".join(part.name for part in spec.parse(defense))
    except ValueError:
        return defense  # as somebody else wrote it


def missing(cell: CellResult) -> str:
    """Why a cell cannot be counted: it failed, or is not finished; empty if it can."""
    if cell.failed is not None:
        return cell.failed or "it failed"
    if cell.training is None or cell.attacked is None:
        return "not started"
    done, rounds = cell.training.rounds_done, cell.training.experiment.rounds
    return f"not finished: round {done} of {rounds}" if done < rounds else ""


def settings_of(study: Study) -> list[Setting]:
    """The settings of a study in the order of its plan; what is missing in a sweep keeps its row and counts nowhere."""
    grouped: dict[str, tuple[dict[str, Any], list[CellResult]]] = {}
    for cell in study.cells:
        if study.kind == "sweep" and missing(cell):
            cell = cell._replace(training=None, attacked=None)
        varied = {key: value for key, value in cell.varied.items() if key != "attack"}  # attacks share a run
        grouped.setdefault(_key(varied), (varied, []))[1].append(cell)
    plain: dict[str, dict[int, float]] = {}
    for varied, cells in grouped.values():
        setting = Setting(0, varied, cells, {})
        if setting.undefended:
            plain[_key(setting.others)] = setting.accuracies
    return [
        Setting(number, varied, cells, plain.get(_key({k: v for k, v in varied.items() if k != "defense"}), {}))
        for number, (varied, cells) in enumerate(grouped.values(), 1)
    ]


def _key(varied: dict[str, Any]) -> str:
    return repr(sorted((key, str(value)) for key, value in varied.items()))


def floors_of(settings: Sequence[Setting]) -> dict[str, list[Row]]:
    """The blind guesses that settings share: those of the undefended one if it was attacked, else of the first with any."""
    for setting in sorted(settings, key=lambda one: not one.undefended):
        for attacker in setting.attackers:
            if found := attacker.floors():
                return found
    return {}
