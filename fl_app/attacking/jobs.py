"""One piece of attack work: captures in, answers on disk out. It runs the same in this process and in a worker."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch

import adversary
from adversary import Attack, AttackError, Belief, Public
from adversary.search.checkpoint import kept_in
from fl_app import models
from fl_app.attacking import foreign
from fl_app.core import halfprecision
from fl_app.core.errors import told
from fl_app.core.local import Tensors
from fl_app.core.observation import Candidates, Key, Knowledge, Observation, Task, compatibility
from fl_app.core.space import Images, Space
from fl_app.store.captures import CaptureError, Captures
from fl_app.store.files import RunError, load_tensors
from fl_app.store.reconstructions import guess_path, save_guess, save_scores

SEARCHES = "searches"
"""The folder, beside the answers, of the states of searches that are under way."""
Member = tuple[Key, Observation]


class Outcome(NamedTuple):
    """What became of a target: an answer on disk, or the reason why there is none."""

    key: Key
    status: Literal["done", "failed"]
    reason: str = ""
    seconds: float = 0.0
    final: bool = False
    """Whether the target itself is the cause of a failure, so that another try would fail as well."""


@dataclass(frozen=True)
class TaskSpec:
    """A Task that can be sent to another process."""

    model: str
    input_shape: tuple[int, ...]
    num_classes: int
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    code: Path | None = None
    """The folder from which `model` = "module:function" is imported, if it is not one of ours."""
    front: str = ""
    """The block that a malicious server put in front of the model."""
    space: Space | None = None
    """What an example is, if it is no image."""

    def build(self) -> Task:
        """The task itself."""
        if self.code is not None:
            return foreign.load(self.model, self.code, self.space or Images(self.input_shape), self.num_classes, self.normalize)
        model = models.build(self.model, self.input_shape, self.num_classes, normalize=self.normalize, front=self.front)
        halfprecision.require(model.parameters())
        return Task(model, self.space or Images(self.input_shape), self.num_classes)


class Learning(NamedTuple):
    """What an attack that is trained first learns from, and where what it learned is kept."""

    public: Path
    """A file of public examples: x (n, *shape), y int64 (n,); of images with attributes, a int64 (n, columns)."""
    folder: Path


@dataclass(frozen=True)
class Job:
    """Some targets to attack."""

    captures: Path
    out: Path
    attack: str
    task: TaskSpec
    keys: tuple[Key, ...]
    seed: int = 0
    granted: dict[Key, Knowledge] = field(default_factory=dict)
    threads: int = 2
    device: str = "cpu"
    learning: Learning | None = None


def parts_of(keys: Sequence[Key], at_once: int, *, by_client: bool) -> list[tuple[Key, ...]]:
    """The keys of each job: those of a round together, or all rounds of a client; about `at_once` targets in a job."""
    bundles: dict[int, list[Key]] = {}
    for key in keys:
        bundles.setdefault(key[1] if by_client else key[0], []).append(key)
    if not by_client:
        return [tuple(all_[i : i + at_once]) for all_ in bundles.values() for i in range(0, len(all_), at_once)]
    clients = list(bundles.values())
    return [tuple(key for one in clients[i : i + at_once] for key in one) for i in range(0, len(clients), at_once)]


def run_job(job: Job) -> list[Outcome]:
    """Attack the targets of a job in groups; one that fails is an outcome with its reason and does not lose the rest."""
    if torch.get_num_threads() != job.threads:
        torch.set_num_threads(job.threads)
    captures, task, attack = Captures(job.captures), job.task.build(), adversary.build(job.attack)
    outcomes: list[Outcome] = []
    groups: dict[tuple[object, ...], list[Member]] = {}
    moved: dict[int, Tensors] = {}
    for key in job.keys:
        try:
            seen = captures.read(captures.path_of(*key))
            if job.task.code is not None:
                seen = foreign.fitted(seen, task.model)
        except (CaptureError, AttackError) as error:
            outcomes.append(Outcome(key, "failed", f"the capture cannot be used: {error}", final=not _by_system(error)))
            continue
        seen = replace(_on(seen, job.device, moved), knowledge=_told(job.granted.get(key, seen.knowledge), job.device))
        # An attack that learns at weights is trained for those of each round by itself.
        weights = id(seen.params) if attack.learns_from(task.space) and attack.at_weights else None
        groups.setdefault((weights, *compatibility(seen)), []).append((key, seen))
    task.model.to(job.device)
    for members in groups.values():
        with kept_in(job.out / SEARCHES):
            found = _run_group(job, attack, task, members)
        if all(one.status == "done" or one.final for one in found):  # else another try goes on from there
            shutil.rmtree(job.out / SEARCHES, ignore_errors=True)
        outcomes += found
    return outcomes


def _by_system(error: BaseException | None) -> bool:
    """Whether the operating system is the cause of an error: a right, a disk; that may pass."""
    return error is not None and (isinstance(error, OSError) or _by_system(error.__cause__))


def _run_group(job: Job, attack: Attack, task: Task, members: Sequence[Member]) -> list[Outcome]:
    began = time.monotonic()
    try:
        answer = _prepared(job, attack, task, members[0][1])([seen for _, seen in members], task, job.seed)
    except Exception as error:  # out of memory, operators without a derivative, and code from outside may raise anything
        return [Outcome(key, "failed", told(error), final=isinstance(error, AttackError)) for key, _ in members]
    seconds = (time.monotonic() - began) / len(members)
    outcomes = []
    for place, (key, seen) in enumerate(members):
        granted, remark = ", ".join(seen.knowledge.ledger), getattr(answer, "remark", "")
        notes = {
            "attack": job.attack,
            "ledger": (granted or "nothing beyond the protocol") + (f"; {remark}" if remark else ""),
            "visibility": seen.visibility,
            "seconds": f"{seconds:.3f}",
            **({"question": attack.question} if attack.question else {}),
        }
        try:
            if isinstance(answer, Belief):
                save_scores(guess_path(job.out, key), answer.scores[place], notes)
            elif not bool(answer.loss[place].isfinite()):
                raise AttackError("every attempt diverged")
            else:
                others = answer.others[place] if answer.others else {}
                control = None if answer.control is None else answer.control[place]
                parts = answer.x[place], answer.y[place], answer.loss[place]
                save_guess(guess_path(job.out, key), *parts, notes, others, control)
            outcomes.append(Outcome(key, "done", "", seconds))
        except (AttackError, RunError, OSError) as error:
            outcomes.append(Outcome(key, "failed", str(error), seconds, final=isinstance(error, AttackError)))
    return outcomes


def _prepared(job: Job, attack: Attack, task: Task, seen: Observation) -> Attack:
    """The attack, after it has learned what it learns from public examples."""
    if not attack.learns_from(task.space) or (job.learning is None and not attack.needs_public):
        return attack
    if job.learning is None:
        raise AttackError("this attack learns from public examples first, and there are none here")
    tensors, _ = load_tensors(job.learning.public)
    if tensors.keys() - {"a"} != {"x", "y"}:
        raise RunError(f"{job.learning.public} does not hold public examples x and y")
    public = Public(**{name: value.to(job.device) for name, value in tensors.items()})
    return attack.prepare(task, seen, public, job.seed, job.learning.folder)


def _on(seen: Observation, device: str, moved: dict[int, Tensors]) -> Observation:
    """An observation on a device; targets that share their weights go on sharing them."""
    if device == "cpu":
        return seen
    params = moved.setdefault(id(seen.params), {name: value.to(device) for name, value in seen.params.items()})
    return replace(seen, params=params, update={name: value.to(device) for name, value in seen.update.items()})


def _told(knowledge: Knowledge, device: str) -> Knowledge:
    """Knowledge whose candidates are on a device."""
    if device == "cpu" or knowledge.candidates is None:
        return knowledge
    return replace(knowledge, candidates=Candidates(*(value.to(device) for value in knowledge.candidates)))
