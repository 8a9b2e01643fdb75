"""Attacking captures: which targets are open, work on them, and what is recorded.

What is done is on disk, so that a session can be broken off and taken up again.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import adversary
from adversary import Attack
from adversary.generative import generator_of
from fl_app import data
from fl_app.attacking.generators import prepared
from fl_app.attacking.jobs import Job, Learning, Outcome, TaskSpec, parts_of
from fl_app.attacking.worker import InlineWorker, Worker
from fl_app.core.machine import free_threads
from fl_app.core.observation import Candidates, Key, Knowledge
from fl_app.core.seeds import derive
from fl_app.data.splits import PUBLIC
from fl_app.experiment.assets import Assets, assets_of
from fl_app.experiment.candidates import public_examples, read_candidates
from fl_app.experiment.config import Experiment
from fl_app.experiment.fingerprint import check_data
from fl_app.experiment.grants import candidates_of, knowledge_of
from fl_app.experiment.runs import experiment_of
from fl_app.store.captures import CaptureError, Captures
from fl_app.store.files import RunError, checksum, load_tensors, save_tensors, write_atomic
from fl_app.store.lines import LineFile, read_lines
from fl_app.store.locks import LOCK, alone
from fl_app.store.reconstructions import guess_path
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
    shape, classes = dataset.input_shape, dataset.num_classes
    return TaskSpec(experiment.model, shape, classes, normalize, front=experiment.front, space=dataset.space)


class CaptureSession(ABC):
    """One attack on the captures in a folder; subclasses say what is known of them."""

    def __init__(self, captures: Captures, folder: Path, attack: str, worker: Worker, *, seed: int, threads: int) -> None:
        self.built: Attack = adversary.build(attack)  # refuse a bad spec before anything is read
        self.captures, self.folder, self.attack, self.worker = captures, folder, attack, worker
        self.seed, self.threads = seed, threads
        self.failures_path = folder / "failed.jsonl"
        self.timing_path = folder / "timing.jsonl"
        self._tried: set[Key] = set()

    @abstractmethod
    def task(self) -> TaskSpec:
        """The public facts."""

    def knowledge(self, key: Key) -> Knowledge | None:
        """What is granted about a target; None: what its capture says."""
        return None

    def learning(self) -> Learning | None:
        """What an attack that is trained first learns from; None if there is nothing."""
        return None

    @property
    def device(self) -> str:
        """Where the attack computes."""
        return "cpu"

    def captured(self, rounds: Collection[int] | None = None, clients: Collection[int] | None = None) -> list[Key]:
        """The targets that were captured."""
        return self.captures.targets(rounds, clients)

    def failures(self) -> dict[Key, str]:
        """The targets without an answer that failed, with the reason."""
        return {key: reason for key, (reason, _) in self._failed().items()}

    def _failed(self) -> dict[Key, tuple[str, bool]]:
        """Target -> the last reason, and whether another try would fail as well."""
        try:
            lines = [((line["round"], line["client"]), line) for line in read_lines(self.failures_path)]
            found = {key: (str(line["reason"]), bool(line.get("final"))) for key, line in lines}
        except KeyError as error:
            raise RunError(f"{self.failures_path} is damaged: a line has no {error}; delete it to try again") from None
        return {key: why for key, why in found.items() if not guess_path(self.folder, key).exists()}

    def pending(self, keys: list[Key]) -> list[Key]:
        """The targets without an answer, once per session also those that failed for a reason that may have passed."""
        failed = {key for key, (_, final) in self._failed().items() if final or key in self._tried}
        open_ = [key for key in keys if key not in failed and not guess_path(self.folder, key).exists()]
        if self.built.by_client:  # rounds of a client stand and fall together
            clients = {client for _, client in open_}
            open_ = [key for key in keys if key[1] in clients and key not in failed]
        return open_

    @contextmanager
    def alone(self, *, wait: bool = False) -> Iterator[None]:
        """Hold the folder of the results: two processes that attack the same would undo each other's records."""
        with alone(self.folder / LOCK, "" if wait else f"{self.folder} is being written by another attack: wait for it"):
            yield

    def work(self, keys: list[Key], at_once: int, on_done: Callable[[list[Outcome]], None] = lambda _: None) -> None:
        """Attack targets, those of a round (or the rounds of a client) together and about `at_once` in a job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for outcomes, seconds in self.worker.run_all(self._jobs(keys, at_once)):
            self._record(outcomes, seconds)
            on_done(outcomes)

    def parts(self, keys: list[Key], at_once: int) -> list[tuple[Key, ...]]:
        """The targets of each job."""
        return parts_of(keys, self.worker.together(len(keys), at_once), by_client=self.built.by_client)

    def _jobs(self, keys: list[Key], at_once: int) -> Iterator[Job]:
        task, learning = self.task(), self.learning() if self.built.trained else None
        for part in self.parts(keys, at_once):
            yield Job(
                captures=self.captures.folder.absolute(),  # a worker of Ray may be in another directory
                out=self.folder.absolute(),
                attack=self.attack,
                task=task,
                keys=part,
                seed=derive(self.seed, "attack", self.attack),
                granted={key: knowledge for key in part if (knowledge := self.knowledge(key)) is not None},
                threads=self.threads,
                device=self.device,
                learning=learning,
            )

    def _record(self, outcomes: list[Outcome], seconds: float) -> None:
        LineFile(self.timing_path).append({"targets": len(outcomes), "seconds": round(seconds, 3)})
        failed = [one for one in outcomes if one.status == "failed"]
        self._tried.update(one.key for one in failed)
        LineFile(self.failures_path).append(
            *({"round": one.key[0], "client": one.key[1], "reason": one.reason, "final": one.final} for one in failed)
        )


class Session(CaptureSession):
    """One attack with its grants on the captures of one run."""

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
        device: str | None = None,
        candidates: Path | None = None,
    ) -> None:
        self.run, self.grants, self.who, self.asked = run, grants, who, asked or attack
        self.candidates_file = candidates
        found = experiment_of(run)
        self.experiment = found.changed(device=device) if device else found
        check_data(run.path, self.experiment)
        built = adversary.build(attack)
        built.fits(data.load(self.experiment.dataset).space)
        if generator_of(built) is not None:  # it is named in what is kept: results belong to one generator
            attack = adversary.text_of(prepared(built, self.experiment))
        # What is free when nothing else runs; beside the training no more than a client takes.
        free = free_threads() if isinstance(worker, InlineWorker) else self.experiment.threads
        facts = (*grants, f"candidates {checksum(load_tensors(candidates)[0], '')}") if candidates else grants
        folder = run.path / "attacks" / folder_name(attack, facts)
        captures = Captures(run.path / "captures")
        super().__init__(captures, folder, attack, worker, seed=self.experiment.seed, threads=threads or free)

    @property
    def assets(self) -> Assets:
        """The parts of the run's experiment."""
        return assets_of(self.experiment)

    @property
    def device(self) -> str:
        """That of the run, or another that was asked for."""
        return self.assets.device

    def task(self) -> TaskSpec:
        """The public facts of the run."""
        return task_spec(self.experiment)

    def captured(self, rounds: Collection[int] | None = None, clients: Collection[int] | None = None) -> list[Key]:
        """The targets that were captured; RunError if there are none."""
        found = super().captured(rounds, clients)
        if not found:
            raise RunError(
                f"{self.run.path} has no captures{' of these rounds and clients' if rounds or clients else ''}: "
                "run with -c capture=1 (or all, or 1-5) to keep some"
            )
        return found

    def work(self, keys: list[Key], at_once: int, on_done: Callable[[list[Outcome]], None] = lambda _: None) -> None:
        """Attack targets, after saying in the folder what is in it."""
        self.describe()
        super().work(keys, at_once, on_done)

    def knowledge(self, key: Key) -> Knowledge | None:
        """What the session's grants tell of a target."""
        generator = bool(generator_of(self.built))
        if not self.grants and not self.built.trained and not self.built.question and not generator:
            return None
        params = None
        if "statistics" in self.grants:
            try:
                params = self.captures.read(self.captures.path_of(*key)).params
            except CaptureError:
                return None  # the job reports the damaged file
        known = knowledge_of(self.assets, self.grants, key, params)
        asked = self.candidates(key) if self.built.question else None
        public = known.public or generator or self.built.learns_from(self.assets.space)
        return replace(known, public=public, candidates=asked)

    def candidates(self, key: Key) -> Candidates:
        """What an inference attack is asked about a target: those in the file that was given, or drawn for the target."""
        return self._named or candidates_of(self.assets, key, self.built.question)

    @cached_property
    def _named(self) -> Candidates | None:
        """The candidates in the file that was given."""
        if self.candidates_file is None:
            return None
        return read_candidates(self.candidates_file, self.task().build().space, self.assets.num_classes)

    def learning(self) -> Learning:
        """Examples of the test split, which no client holds and no target is made of, written once per run."""
        # Who asks about members is not shown those that were held out.
        wanted = 0 if self.built.question else self.built.public_wanted
        path = self.run.path / ("public.safetensors" if wanted <= PUBLIC else f"public-{wanted}.safetensors")
        if not path.exists():
            public = zip("xya", public_examples(self.assets, wanted), strict=True)
            save_tensors(
                path,
                {name: value for name, value in public if value is not None},
                {"what": "public examples for attacks that are trained first"},
            )
        # What depends on the weights of a round is of use to this run alone.
        folder = self.run.path / "learned" if self.built.at_weights else data.cache_dir() / "attacks"
        return Learning(path.absolute(), folder.absolute())

    def describe(self) -> None:
        """Say in the folder what is in it; the informed twin of an attack names the attack that was asked for."""
        self.folder.mkdir(parents=True, exist_ok=True)
        about = {"attack": self.attack, "asked": self.asked, "who": self.who, "grants": list(self.grants)}
        about |= {"question": self.built.question} if self.built.question else {}
        write_atomic(self.folder / "attack.json", json.dumps(about))
