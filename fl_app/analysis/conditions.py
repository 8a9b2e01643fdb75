"""The rows of reports and tables: each combination of settings in a study, with its cells of all seeds and its attackers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, Protocol

from fl_app.analysis.attackers import Attacker, attackers_of, worst, worst_informed, worst_naive
from fl_app.analysis.results import AttackResult, CellResult, RunResult, measures_of
from fl_app.core import spec
from fl_app.scoring.base import Measure
from fl_app.scoring.metrics import METRICS
from fl_app.scoring.target import Row

APART = ("dataset", "split", "partition", "model", "targets")
"""Settings between which accuracies or leakage are not compared: each combination has its own curves and blind floors."""

LEADING = ("psnr", "cells", "rouge1")
"""Of images, of rows of a table, of text."""


class Find(Protocol):
    """Who is the worst by a metric: by answers, or by the truth where there are members."""

    def __call__(self, metric: str, *, by_truth: bool = False) -> Attacker | None:
        """The attacker, if there is one."""
        ...


@dataclass(frozen=True)
class Condition:
    """What was varied, seeds left out, and what it came to."""

    number: int
    """Its row in the summary."""
    varied: dict[str, Any]
    cells: list[CellResult]
    baseline: dict[int, float]
    """Seed -> accuracy of the undefended cell that differs in nothing else."""
    measures: Mapping[str, Measure]
    plain: "Condition | None" = None
    """The undefended condition that differs in nothing else."""
    asked: tuple[str, ...] = ()
    """Unless it is empty, only what these attacks and the informed ones derived from them came to."""

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
        return ", ".join(f"{key}={value}" for key, value in self.varied.items() if key.partition(".")[0] in APART)

    @property
    def runs(self) -> list[RunResult]:
        """The runs whose captures were attacked, each once however many cells it serves."""
        return list({cell.attacked.path: cell.attacked for cell in self.cells if cell.attacked is not None}.values())

    @cached_property
    def attackers(self) -> list[Attacker]:
        """Who attacked it; beside an attack with members, the worst of them on each target by truth."""
        found = [attack for run in self.runs for attack in run.attacks]
        return attackers_of(one for one in found if not self.asked or one.asked in self.asked)

    def only(self, asked: Collection[str]) -> "Condition":
        """The same, as far as some attacks went; its undefended twin as well."""
        plain = replace(self.plain, asked=tuple(asked)) if self.plain else None
        return replace(self, asked=tuple(asked), plain=plain)

    def by_attack(self) -> "list[Condition]":
        """The same, once for each attack that was asked for; itself if there was none."""
        asked = dict.fromkeys(one.asked for one in self.attackers)
        return [self.only([text]) for text in asked] or [self]

    def run_of(self, part: AttackResult) -> RunResult:
        """The run that an attack was on."""
        return next(run for run in self.runs if part.folder in [one.folder for one in run.attacks])

    @property
    def answering(self) -> list[Attacker]:
        """The attackers with what they answered, chosen without the truth."""
        return [one for one in self.attackers if not one.by_truth]

    @cached_property
    def leading(self) -> str:
        """The metric by which attackers are ranked where none is named: PSNR, or what was scored in its place."""
        return next((name for name in LEADING if any(one.mean(name) is not None for one in self.attackers)), LEADING[0])

    def _by(self, metric: str) -> tuple[str, Measure]:
        name = metric or self.leading
        return name, self.measures[name]

    def naive(self, metric: str = "", *, by_truth: bool = False) -> Attacker | None:
        """The worst attacker by a metric who was not told of the defense, by its answers or by its worst members."""
        return worst_naive(self.attackers if by_truth else self.answering, *self._by(metric))

    def informed(self, metric: str = "", *, by_truth: bool = False) -> Attacker | None:
        """The worst of all attackers by a metric; None if nobody was told of the defense."""
        return worst_informed(self.attackers if by_truth else self.answering, *self._by(metric))

    def told(self, metric: str = "") -> Attacker | None:
        """The worst attacker by a metric of those alone who were told of the defense."""
        return worst([one for one in self.answering if one.informed], *self._by(metric))

    def answered(self, metric: str = "") -> Attacker | None:
        """The worst attacker by a metric, by what it answered."""
        return worst(self.answering, *self._by(metric))

    def worst(self, metric: str = "", server_round: int | None = None) -> Attacker | None:
        """The attacker to whom most is leaked by a metric, over all rounds or in one: by truth where it has members."""
        return worst(self.attackers, *self._by(metric), server_round)

    @property
    def attacked_rounds(self) -> list[int]:
        """The rounds of all targets."""
        return sorted({number for one in self.attackers for number in one.rounds})

    @property
    def batch_sizes(self) -> tuple[set[int], set[int]]:
        """Those of the runs whose accuracy counts, and those of the runs that were attacked."""
        trained, attacked = self.trained.values(), self.runs
        return {run.experiment.batch_size for run in trained}, {run.experiment.batch_size for run in attacked}

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
    def delta(self) -> float | None:
        """The delta at which epsilon is reported."""
        return max((float(run.last["delta"]) for run in self.trained.values() if "epsilon" in run.last), default=None)

    @property
    def seconds_a_round(self) -> float | None:
        """Mean duration of a training round over the seeds."""
        return mean([seconds for run in self.trained.values() if (seconds := run.seconds_a_round) is not None])

    def cost_a_round(self, key: str) -> float | None:
        """Mean over the seeds of what a round spent, see `RunResult.cost_a_round`."""
        return mean([spent for run in self.trained.values() if (spent := run.cost_a_round(key)) is not None])

    @property
    def seen_in_words(self) -> str:
        """What the server saw of the clients that were attacked."""
        return ", ".join(dict.fromkeys(run.experiment.seen_in_words for run in self.runs))


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return sum(values) / len(values) if values else None


def _family(defense: str) -> str:
    try:
        names = [part.name for part in spec.parse(defense)]
    except ValueError:
        return defense  # as somebody else wrote it
    return " + ".join(name for name in names if name != "none") or "none"


def missing(cell: CellResult) -> str:
    """Why a cell cannot be counted: it failed, or is not finished; empty if it can."""
    if cell.failed is not None:
        return cell.failed or "it failed"
    if cell.training is None or cell.attacked is None:
        return "not started"
    done, rounds = cell.training.rounds_done, cell.training.experiment.rounds
    return f"not finished: round {done} of {rounds}" if done < rounds else ""


def conditions_of(cells: Sequence[CellResult], *, unfinished: bool = False) -> list[Condition]:
    """The conditions behind cells, in their order; what is missing keeps its row and counts nowhere, unless `unfinished`."""
    measures = {**METRICS, **measures_of(cells)}
    grouped: dict[str, tuple[dict[str, Any], list[CellResult]]] = {}
    for cell in cells:
        if not unfinished and missing(cell):
            cell = cell._replace(training=None, attacked=None)
        varied = {key: value for key, value in cell.varied.items() if key != "attack"}  # attacks share a run
        grouped.setdefault(_key(varied), (varied, []))[1].append(cell)
    found = [Condition(number, *group, {}, measures) for number, group in enumerate(grouped.values(), 1)]
    plain = {_key(one.others): one for one in found if one.undefended}
    undefended = [plain.get(_key(one.others)) for one in found]
    pairs = zip(found, undefended, strict=True)
    return [replace(one, baseline=other.accuracies, plain=other) if other else one for one, other in pairs]


def _key(varied: dict[str, Any]) -> str:
    return repr(sorted((key, str(value)) for key, value in varied.items()))


def measures_shown(conditions: Sequence[Condition], *places: str) -> dict[str, Measure]:
    """The measures that belong into these places: those with a value, and where something was rebuilt with a threshold."""
    known = {name: measure for one in conditions for name, measure in one.measures.items()} or dict(METRICS)
    wanted = {name: measure for name, measure in known.items() if measure.shown in places}
    valued = {name for name in wanted if any(each.worst(name) for each in conditions)}
    if valued and all(known[name].question for name in valued):
        return {name: one for name, one in wanted.items() if name in valued}
    of = next((known[name].of for name in wanted if name in valued and known[name].of in ("rows", "text")), "images")
    return {name: one for name, one in wanted.items() if name in valued or (one.threshold and one.of in ("any", of))}


def floors_of(conditions: Sequence[Condition]) -> dict[str, list[Row]]:
    """The blind floors that conditions share, by name: of the undefended one if it was attacked, else of the first with it.

    Floors of one name hold the measures of all questions that were asked.
    """
    found: dict[str, list[Row]] = {}
    for one in sorted(conditions, key=lambda one: not one.undefended):
        for attacker in one.attackers:
            for name, rows in attacker.floors().items():
                before = found.get(name, [])
                known = {measure for row in before for measure in row}
                more = [{measure: value for measure, value in row.items() if measure not in known} for row in rows]
                nothing: Row = {}
                found[name] = [{**old, **new} for old, new in zip_longest(before, more, fillvalue=nothing) if old or new]
    return found
