"""How long units take: from those that are finished, or from a short trial of each kind."""

import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import adversary
from adversary import Facts
from fl_app import engines
from fl_app.core import spec
from fl_app.experiment.config import Experiment
from fl_app.sweeps.plan import Attacking, Unit
from fl_app.sweeps.work import Quiet, attack

TRIAL_ROUNDS = 4
TRIAL_ITERATIONS = (2, 6)


class Kind(NamedTuple):
    """Units of a kind take time in proportion to their amount of work."""

    dataset: str
    model: str
    what: str
    """The name of an attack; else 'training', or 'targets', whose few examples cost less than the evaluations around them."""
    defense: str


def kind_of(unit: Unit) -> Kind:
    """The kind of a unit: strengths do not matter, names do."""
    experiment = unit.experiment
    names = " + ".join(part.name for part in spec.parse(experiment.defense))
    what = spec.parse(unit.attacking.attack)[0].name if unit.attacking else Path(experiment.run_dir).name
    return Kind(experiment.dataset, spec.parse(experiment.model)[0].name, what, names)


def amount(unit: Unit) -> float:
    """Examples whose gradient is taken in a run or in an attack."""
    told = unit.experiment
    asked = max(1.0, told.fraction * told.clients)
    if unit.attacking is None:
        return told.rounds * asked * told.rule.num_examples * told.local_steps
    rounds = sum(number in told.captured_rounds for number in range(1, told.rounds + 1))
    clients = sum(number in told.captured_clients for number in range(told.clients)) if told.seen == "individual" else 1
    return rounds * clients * adversary.build(unit.attacking.attack).cost(told.rule.num_examples, told.rule)


@dataclass
class Estimator:
    """Seconds by kind; what is not known of a defense is taken from the others."""

    seconds: dict[Kind, float] = field(default_factory=dict)
    amounts: dict[Kind, float] = field(default_factory=dict)

    def learn(self, unit: Unit, seconds: float) -> None:
        """Take a unit into account that took so long."""
        kind = kind_of(unit)
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        self.amounts[kind] = self.amounts.get(kind, 0.0) + amount(unit)

    def knows(self, unit: Unit) -> bool:
        """Whether a unit of just this kind was seen."""
        return kind_of(unit) in self.seconds

    def guess(self, unit: Unit) -> float | None:
        """The seconds that a unit will take; None if nothing like it was seen."""
        kind = kind_of(unit)
        like = [kind] if kind in self.seconds else [one for one in self.seconds if one[:3] == kind[:3]]
        if not like:
            return None
        return amount(unit) * sum(self.seconds[one] for one in like) / sum(self.amounts[one] for one in like)


def learned(units: Iterable[Unit]) -> Estimator:
    """What finished units say."""
    found = Estimator()
    for unit in units:
        if (seconds := unit.seconds) is not None:
            found.learn(unit, seconds)
    return found


def try_out(units: Iterable[Unit], found: Estimator, budget: float = 3.0) -> None:
    """Time a few rounds or iterations of each kind that is not known; after so many seconds, only if nothing like it is."""
    began = time.monotonic()
    for unit in units:
        known = found.guess(unit) is not None if time.monotonic() - began > budget else found.knows(unit)
        if known or unit.seconds is not None:
            continue
        with tempfile.TemporaryDirectory(prefix="thorns-") as folder:
            if unit.attacking is None:
                found.learn(unit, _run_seconds(unit.experiment, Path(folder)))
            elif (seconds := _attack_seconds(unit, unit.attacking, Path(folder))) is not None:
                found.learn(unit, seconds)


def _run_seconds(experiment: Experiment, folder: Path) -> float:
    """A run's seconds from its first rounds: rounds cost the same, and evaluations what the first one did."""
    rounds = min(TRIAL_ROUNDS, experiment.rounds)
    trial = experiment.changed(rounds=rounds, eval_every=rounds, capture="none", run_dir=str(folder / "run"))
    times = [float(line["seconds"]) for line in engines.run(trial, "inline", Quiet(), workers=1).metrics()]
    steps = [after - before for before, after in pairwise(times)]
    a_round = min(steps)
    evaluation = max(0.0, steps[0] - a_round)
    return experiment.rounds * a_round + (2 + experiment.rounds // experiment.eval_every) * evaluation


def _attack_seconds(unit: Unit, asked: Attacking, folder: Path) -> float | None:
    """An attack's seconds from a few of its iterations on the first round; None if it does not iterate."""
    built, rule = adversary.build(asked.attack), unit.experiment.rule
    once = built.shortened(1)
    if once is None:
        return None
    trial = unit.experiment.changed(rounds=1, eval_every=1, capture="1", run_dir=str(folder / "run"))
    engines.run(trial, "inline", Quiet(), workers=1)
    took = []
    for number in TRIAL_ITERATIONS:
        short = built.shortened(number)
        assert short is not None
        began = time.monotonic()
        attack(folder / "run", asked._replace(attack=adversary.text_of(short), informed=False, lpips=False, noise_ratio=False))
        took.append(time.monotonic() - began)
    an_iteration = max(0.0, (took[1] - took[0]) / (TRIAL_ITERATIONS[1] - TRIAL_ITERATIONS[0]))
    whole = amount(unit) / amount(Unit("", folder, trial, asked))  # rounds that are attacked
    iterations = built.cost(rule.num_examples, rule) / once.cost(rule.num_examples, rule)
    told = built.informed(unit.experiment.defense, Facts(examples=rule.num_examples)) if asked.informed else []
    attackers = 1 + sum(one.attack is not None for one in told)  # whose iterations cost about the same
    return attackers * whole * (took[1] + an_iteration * max(0.0, iterations - TRIAL_ITERATIONS[1]))
