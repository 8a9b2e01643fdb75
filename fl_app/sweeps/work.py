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
from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import assets_of, use_threads
from fl_app.experiment.config import Experiment
from fl_app.experiment.evaluators import JUDGING, ensure
from fl_app.experiment.runs import experiment_of
from fl_app.scoring.attacks import Scoring
from fl_app.store.files import RunError, write_atomic
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
        _journal(unit, "started")
        began = time.monotonic()
        # As the setting says, and not as many as are free: results shall not depend on the number of workers.
        use_threads(unit.experiment.threads)
        if unit.attacking is None:
            train(unit.experiment)
        else:
            attack(Path(unit.experiment.run_dir), unit.attacking)
        _journal(unit, "finished")
        write_atomic(unit.record, json.dumps({"unit": unit.name, "seconds": round(time.monotonic() - began, 3)}))


def _journal(unit: Unit, event: str) -> None:
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
    run = RunDir(path) if kept == experiment.rounds else engines.run(experiment, "inline", Quiet(), resume=kept is not None)
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


def attack(path: Path, asked: Attacking) -> None:
    """Attack all that a run captured, naively and informed, and score it."""
    run = RunDir.open(path)
    experiment = experiment_of(run)
    assets = assets_of(experiment)
    evaluator = ensure(experiment.dataset, split=experiment.split, training=JUDGING) if asked.noise_ratio else None
    first = Session(run, asked.attack, asked.grants, InlineWorker(), threads=experiment.threads)
    keys = first.captured()
    for number, session in enumerate(sessions_of(first, keys, adaptive=asked.adaptive)):
        session.describe()
        waiting = set(session.pending(keys))
        for part in session.parts(keys, AT_ONCE):
            if waiting.intersection(part):  # as a whole: the draws of a job depend on all of its targets
                session.work(list(part), AT_ONCE, lambda _: None)
        use_threads(experiment.threads)
        Scoring(
            assets,
            session.folder,
            session.failures(),
            perceptual=asked.lpips,
            evaluator=evaluator,
            floors=number == 0,
        ).run(keys)
