"""Attacking the captures of a run: which targets are open, work on them, and what is recorded."""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Collection

import adversary
from adversary.matching import GradientMatching
from fl_app import data
from fl_app.attacking.jobs import Job, Outcome, TaskSpec
from fl_app.attacking.worker import InlineWorker, Worker
from fl_app.core.observation import Key
from fl_app.core.seeds import derive
from fl_app.experiment.assets import Assets, assets_of
from fl_app.experiment.config import Experiment
from fl_app.experiment.grants import knowledge_of
from fl_app.experiment.runs import experiment_of
from fl_app.store.captures import CaptureError, Captures
from fl_app.store.files import RunError, write_atomic
from fl_app.store.reconstructions import guess_path, key_of
from fl_app.store.runs import RunDir


def folder_name(attack: str, grants: tuple[str, ...]) -> str:
    """A readable folder for the results of an attack with its grants."""
    text = attack + "".join(f" +{grant}" for grant in sorted(grants))
    words = re.sub(r"[^a-z0-9_.]+", "-", text.lower()).strip("-")[:60]
    return f"{words}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def task_spec(experiment: Experiment) -> TaskSpec:
    """The public facts of an experiment."""
    dataset = data.load(experiment.dataset)
    normalize = (dataset.mean, dataset.std) if experiment.normalize else None
    return TaskSpec(experiment.model, dataset.input_shape, dataset.num_classes, normalize)


class Session:
    """One attack with its grants on the captures of one run; what is done is on disk, so it can be broken off and resumed."""

    def __init__(
        self,
        run: RunDir,
        attack: str,
        grants: tuple[str, ...],
        worker: Worker,
        *,
        who: str = "attack",
        asked: str | None = None,
        threads: int | None = None,
    ) -> None:
        built = adversary.build(attack)  # refuse a bad spec before anything is read
        self.by_client = isinstance(built, GradientMatching) and built.by_client
        self.run, self.attack, self.grants, self.worker = run, attack, grants, worker
        self.who, self.asked = who, asked or attack
        self.experiment = experiment_of(run)
        # All cores when nothing else runs; beside the training no more than a client takes.
        free = (os.cpu_count() or 1) if isinstance(worker, InlineWorker) else self.experiment.threads
        self.threads = threads or free
        self.captures = Captures(run.path / "captures")
        self.folder = run.path / "attacks" / folder_name(attack, grants)
        self.failures_path = self.folder / "failed.jsonl"
        self.timing_path = self.folder / "timing.jsonl"

    def captured(self, rounds: Collection[int] | None = None, clients: Collection[int] | None = None) -> list[Key]:
        """The targets that were captured."""
        found = self.captures.paths(rounds, clients)
        if not found:
            raise RunError(
                f"{self.run.path} has no captures{' of these rounds and clients' if rounds or clients else ''}: "
                "run with -c capture=1 (or all, or 1-5) to keep some"
            )
        return [key_of(path) for path in found]

    def failures(self) -> dict[Key, str]:
        """The targets that failed, with the reason."""
        if not self.failures_path.exists():
            return {}
        lines = [json.loads(line) for line in self.failures_path.read_text(encoding="utf-8").splitlines()]
        return {(line["round"], line["client"]): line["reason"] for line in lines}

    def pending(self, keys: list[Key]) -> list[Key]:
        """The targets without a guess; failed ones are not tried again unless their record is deleted."""
        failed = self.failures()
        open_ = [key for key in keys if key not in failed and not guess_path(self.folder, key).exists()]
        if self.by_client:  # rounds of a client stand and fall together
            clients = {client for _, client in open_}
            open_ = [key for key in keys if key[1] in clients and key not in failed]
        return open_

    def work(self, keys: list[Key], at_once: int, on_done: Callable[[list[Outcome]], None]) -> None:
        """Attack targets, those of a round (or the rounds of a client) together and about `at_once` in a job."""
        self.describe()
        assets = assets_of(self.experiment)
        task = task_spec(self.experiment)
        for part in self.parts(keys, at_once):
            job = Job(
                captures=self.captures.folder,
                out=self.folder,
                attack=self.attack,
                task=task,
                keys=part,
                seed=derive(self.experiment.seed, "attack", self.attack, *part[0]),
                granted={key: knowledge for key in part if (knowledge := self._grant(assets, key)) is not None},
                threads=self.threads,
                device=assets.device,
            )
            began = time.monotonic()
            outcomes = self.worker.run(job)
            self._record(outcomes, time.monotonic() - began)
            on_done(outcomes)

    def parts(self, keys: list[Key], at_once: int) -> list[tuple[Key, ...]]:
        """The keys of each job."""
        shared = 1 if self.by_client else 0
        bundles: dict[int, list[Key]] = {}
        for key in keys:
            bundles.setdefault(key[shared], []).append(key)
        if not self.by_client:
            return [tuple(all_[i : i + at_once]) for all_ in bundles.values() for i in range(0, len(all_), at_once)]
        clients = list(bundles.values())
        return [tuple(key for one in clients[i : i + at_once] for key in one) for i in range(0, len(clients), at_once)]

    def _grant(self, assets: Assets, key: Key) -> adversary.Knowledge | None:
        if not self.grants:
            return None
        params = None
        if "statistics" in self.grants:
            try:
                params = self.captures.read(self.captures.path_of(*key)).params
            except CaptureError:
                return None  # the job reports the damaged file
        return knowledge_of(assets, self.grants, key, params)

    def describe(self) -> None:
        """Say in the folder what is in it; the adaptive twin of an attack names the attack that was asked for."""
        self.folder.mkdir(parents=True, exist_ok=True)
        about = {"attack": self.attack, "asked": self.asked, "who": self.who, "grants": list(self.grants)}
        write_atomic(self.folder / "attack.json", json.dumps(about))

    def _record(self, outcomes: list[Outcome], seconds: float) -> None:
        with self.timing_path.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"targets": len(outcomes), "seconds": round(seconds, 3)}) + "\n")
        with self.failures_path.open("a", encoding="utf-8") as out:
            for outcome in outcomes:
                if outcome.status == "failed":
                    line = {"round": outcome.key[0], "client": outcome.key[1], "reason": outcome.reason}
                    out.write(json.dumps(line) + "\n")
