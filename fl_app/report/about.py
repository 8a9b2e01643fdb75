"""What was run, with what, and what went wrong: the parts of a report without measurements."""

from collections.abc import Sequence
from typing import NamedTuple

from fl_app.analysis.conditions import Condition, missing
from fl_app.analysis.results import RunResult, Study

MOST = 6
"""More different values than this are counted, not listed."""


class Fact(NamedTuple):
    """A setting or version: its value, or the values that it takes in the trained and in the attacked runs."""

    name: str
    training: str
    attacked: str


def _runs(study: Study) -> tuple[list[RunResult], list[RunResult]]:
    training = {cell.training.path: cell.training for cell in study.cells if cell.training is not None}
    attacked = {cell.attacked.path: cell.attacked for cell in study.cells if cell.attacked is not None}
    return list(training.values()), list(attacked.values())


def _values(found: Sequence[str]) -> str:
    different = list(dict.fromkeys(found))
    return ", ".join(different) if len(different) <= MOST else f"{len(different)} different values"


def facts(study: Study) -> list[Fact]:
    """Every setting of the runs."""
    training, attacked = _runs(study)
    configs = [[run.experiment.run_config() for run in runs] for runs in (training, attacked)]
    names = dict.fromkeys(key for runs in configs for config in runs for key in config if key != "run-dir")
    return [Fact(name, *(_values([str(config[name]) for config in runs]) for runs in configs)) for name in names]


def environment(study: Study) -> list[tuple[str, str]]:
    """Versions and machine, with all values where runs differ; when the first run started and the last."""
    runs = [run for part in _runs(study) for run in part]
    names = dict.fromkeys(key for run in runs for key in run.environment if key != "command")
    found = []
    for name in names:
        values = [run.environment[name] for run in runs if name in run.environment]
        if name == "started" and len(set(values)) > 1:
            found.append(("first run started", min(values)))
            found.append(("last run started", max(values)))
        else:
            found.append((name, _values(values)))
    return found


def in_words(study: Study) -> str:
    """The experiment in one sentence."""
    training, attacked = _runs(study)
    if not training and not attacked:
        return "No run has been started."
    shown = facts(study)
    value = {fact.name: fact.training if training else fact.attacked for fact in shown}
    seeds = sorted({cell.seed for cell in study.cells})
    cells = f"{len(study.cells)} cells, " if study.kind == "sweep" else ""
    words = (
        f"{cells}seed{'s' * (len(seeds) > 1)} {_values([str(seed) for seed in seeds])}. {value['dataset']}, {value['model']}, "
        f"{value['clients']} clients, batch {value['batch-size']}, {value['rounds']} rounds, update '{value['update']}'."
    )
    words += "".join(f" {said}" for said in dict.fromkeys(run.experiment.warning for run in (*training, *attacked)) if said)
    if attacked and training and attacked[0].path != training[0].path:
        other = {fact.name: fact.attacked for fact in shown}
        words += f" Attacked: {other['clients']} clients, batch {other['batch-size']}, rounds {other['capture']}."
    return words


def privacy(conditions: Sequence[Condition]) -> list[str]:
    """What an epsilon on the page is for, and why it grows with the rounds or does not."""
    promised = [run for one in conditions for run in one.trained.values() if "epsilon" in run.last]
    if not promised:
        return []
    sampled = max(float(run.last.get("epsilon_if_sampled", 0.0)) for run in promised)
    words = [
        "for one example of a client, at the delta beside it, given the batches as they are drawn and draws that the "
        f"server cannot repeat; were batches Poisson samples, which they are not, it would be {sampled:.3g} at most."
    ]
    flat = [run for run in promised if len({line["epsilon"] for line in run.metrics if "epsilon" in line}) == 1]
    if flat:
        rounds, where = max(run.rounds_done for run in flat), "" if len(flat) == len(promised) else " where it is flat"
        words.append(
            f"It does not grow with the rounds{where}: a client goes through its examples without repeating any, and has not "
            f"come to their end in {rounds} rounds, so each example was used once at most, and later rounds tell nothing of it."
        )
    if len(flat) < len(promised):
        words.append("It grows where clients have gone through all of their examples and use them again.")
    return words


class Failure(NamedTuple):
    """What is missing, and why."""

    what: str
    reason: str


def failed_cells(study: Study) -> list[Failure]:
    """Cells that failed, then those that are not finished."""
    cells = sorted(study.cells, key=lambda cell: cell.failed is None)
    return [Failure(cell.name, words) for cell in cells if (words := missing(cell))]


def failed_targets(study: Study) -> list[Failure]:
    """Targets without a score, by attack and reason."""
    counted: dict[tuple[str, str, str], int] = {}
    for run in _runs(study)[1]:
        for attack in run.attacks:
            for target in attack.targets:
                if not target.done:
                    key = run.experiment.defense, attack.attack, target.reason or "no reason is recorded"
                    counted[key] = counted.get(key, 0) + 1
    return [
        Failure(f"{defense}: {number} target{'s' * (number > 1)} of {attack}", reason)
        for (defense, attack, reason), number in counted.items()
    ]


def unavailable(study: Study) -> list[str]:
    """Metrics that could not be computed, and why."""
    found: dict[str, str] = {}
    for run in _runs(study)[1]:
        for attack in run.attacks:
            for target in attack.targets:
                found |= target.unavailable
    reasons = dict.fromkeys(found.values())
    return [f"{', '.join(key for key, one in found.items() if one == why)}: {why}" for why in reasons]
