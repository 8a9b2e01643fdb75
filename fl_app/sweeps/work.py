"""One unit of a sweep, from what is on disk to its record; says nothing, and can be killed at any moment."""

import json
import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fl_app import engines
from fl_app.attacking.attackers import AT_ONCE, sessions_of
from fl_app.attacking.jobs import parts_of
from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker
from fl_app.core.local import Tensors
from fl_app.core.observation import Key
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import assets_of, on_device, use_threads
from fl_app.experiment.config import Experiment
from fl_app.experiment.evaluators import JUDGING, ensure
from fl_app.experiment.runs import experiment_of
from fl_app.scoring.attacks import Scoring
from fl_app.scoring.metrics import with_plugged
from fl_app.store.files import RunError, make_folder, write_atomic
from fl_app.store.locks import alone
from fl_app.store.runs import RunDir
from fl_app.sweeps.plan import Attacking, Unit


class Quiet(Watcher):
    """Follows a run without a word."""

    def started(self, run: RunDir, experiment: Experiment, done: int) -> None:
        """Nothing."""

    def on_round(self, line: dict[str, Any]) -> None:
        """Nothing."""


def do(unit: Unit) -> None:
    """Do a unit unless it is done; one process at a time, so that what a killed sweep left behind cannot interfere."""
    with alone(unit.record.with_name(f".{unit.name}.lock")):
        if unit.record.exists():
            return
        journal(unit, "started")
        began = time.monotonic()
        perform(unit)
        finish(unit, time.monotonic() - began)


def perform(unit: Unit) -> None:
    """The work of a unit."""
    # As the setting says, and not as many as are free: results must not depend on the number of workers.
    use_threads(unit.experiment.threads)
    if unit.attacking is None:
        train(unit.experiment)
    else:
        judge = unit.folder / unit.attacking.judge if unit.attacking.judge else None
        attack(Path(unit.experiment.run_dir), unit.attacking, judge)


def finish(unit: Unit, seconds: float) -> None:
    """Record that all of a unit is on this disk."""
    journal(unit, "finished")
    make_folder(unit.record.parent)
    write_atomic(unit.record, json.dumps({"unit": unit.name, "seconds": round(seconds, 3)}))


def journal(unit: Unit, event: str) -> None:
    """A line of journal.jsonl: what was started and finished, when and by which process."""
    line = {"unit": unit.name, "event": event, "time": datetime.now(UTC).isoformat(), "process": os.getpid()}
    with (unit.folder / "journal.jsonl").open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def train(experiment: Experiment) -> RunDir:
    """Run an experiment, or go on with what is there of it; a folder that cannot be used is thrown away."""
    path = Path(experiment.run_dir)
    kept = _kept_rounds(path, experiment)
    if kept is None and path.exists():
        shutil.rmtree(path)
    run = RunDir(path)
    if kept != experiment.rounds:
        # One process: the sweep does so many units at a time as there are cores.
        run = engines.run(experiment, "inline", Quiet(), resume=kept is not None, workers=1)
    answered = [line for line in run.metrics() if "accepted" in line]
    if answered and not any(line["accepted"] for line in answered):
        raise RuntimeError(f"no reply of a client was usable in {len(answered)} rounds: `thorns run` says why")
    return run


def _kept_rounds(path: Path, experiment: Experiment) -> int | None:
    """How many rounds of this very experiment a folder holds; None if it is not usable."""
    try:
        run = RunDir.open(path)
        if experiment_of(run).changed(run_dir=experiment.run_dir) != experiment:
            return None
        run.metrics()
        kept = run.load_checkpoint()
    except RunError:
        return None
    return kept.server_round if kept else 0


def attack(path: Path, asked: Attacking, judge: Path | None = None) -> None:
    """Attack all that a run captured, naively and informed, and score it; `judge` is the run whose network looks at it."""
    run = RunDir.open(path)
    experiment = experiment_of(run)
    assets = assets_of(experiment)
    evaluator = ensure(experiment.dataset, split=experiment.split, training=JUDGING) if asked.noise_ratio else None
    weights = on_device(_trained(judge), assets.device) if judge else None
    first = Session(run, asked.attack, asked.grants, InlineWorker(), threads=experiment.threads)
    keys = first.captured()
    shown = _each_example_once(keys) if "repeats" in asked.grants else keys
    for number, session in enumerate(sessions_of(first, keys, informed=asked.informed)):
        with session.alone(wait=True):  # somebody may attack the same run by hand
            session.describe()
            together = session.built.by_client
            attacked = keys if together else shown
            waiting = set(session.pending(attacked))
            for part in parts_of(attacked, AT_ONCE, by_client=together):
                if waiting.intersection(part):  # as a whole: rounding depends on how many targets are searched together
                    session.work(list(part), AT_ONCE)
            use_threads(experiment.threads)
            Scoring(
                assets,
                session.folder,
                session.failures(),
                perceptual=asked.lpips,
                judge=(assets.model, weights) if weights else None,
                evaluator=evaluator,
                floors=number == 0,
                metrics=with_plugged(asked.metrics),
            ).run(shown)


def _trained(path: Path) -> Tensors:
    """The weights that a run ended with."""
    kept = RunDir.open(path).load_checkpoint()
    if kept is None:
        raise RunError(f"{path} has no weights to judge reconstructions with")
    return kept.weights


def _each_example_once(keys: list[Key]) -> list[Key]:
    """The first round of each client: where all rounds have the same examples, scoring each would count them several times."""
    return list({client: (server_round, client) for server_round, client in sorted(keys, reverse=True)}.values())[::-1]
