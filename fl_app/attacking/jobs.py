"""One piece of attack work: captures in, guesses on disk out. It runs the same in this process and in a worker."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch

import adversary
from adversary.base import AttackError, Guess
from fl_app import models
from fl_app.attacking import foreign
from fl_app.core.observation import Key, Knowledge, Observation, Task, compatibility
from fl_app.store.captures import CaptureError, Captures
from fl_app.store.reconstructions import guess_path, save_guess


class Outcome(NamedTuple):
    """What became of a target: a guess on disk, or the reason why there is none."""

    key: Key
    status: Literal["done", "failed"]
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class TaskSpec:
    """A Task that can be sent to another process."""

    model: str
    input_shape: tuple[int, ...]
    num_classes: int
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    code: Path | None = None
    """The folder from which `model` = "module:function" is imported, if it is not one of ours."""

    def build(self) -> Task:
        """The task itself."""
        if self.code is not None:
            return foreign.load(self.model, self.code, self.input_shape, self.num_classes, self.normalize)
        model = models.build(self.model, self.input_shape, self.num_classes, normalize=self.normalize)
        return Task(model, self.input_shape, self.num_classes)


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


def run_job(job: Job) -> list[Outcome]:
    """Attack the targets of a job in groups; one that fails is an outcome with its reason and does not lose the rest."""
    if torch.get_num_threads() != job.threads:
        torch.set_num_threads(job.threads)
    captures, task, attack = Captures(job.captures), job.task.build(), adversary.build(job.attack)
    outcomes: list[Outcome] = []
    groups: dict[tuple[object, ...], list[tuple[Key, Observation]]] = {}
    for key in job.keys:
        try:
            seen = captures.read(captures.path_of(*key))
            if job.task.code is not None:
                seen = foreign.fitted(seen, task.model)
        except (CaptureError, AttackError) as error:
            outcomes.append(Outcome(key, "failed", f"the capture cannot be used: {error}"))
            continue
        seen = replace(_on(seen, job.device), knowledge=job.granted.get(key, seen.knowledge))
        groups.setdefault(compatibility(seen), []).append((key, seen))
    task.model.to(job.device)
    for members in groups.values():
        outcomes += _run_group(job, attack, task, members)
    return outcomes


def _run_group(job: Job, attack: adversary.Attack, task: Task, members: Sequence[tuple[Key, Observation]]) -> list[Outcome]:
    began = time.monotonic()
    rng = torch.Generator().manual_seed(job.seed)
    try:
        guess: Guess = attack([seen for _, seen in members], task, rng)
    except (AttackError, RuntimeError, ValueError) as error:  # RuntimeError: out of memory, operators without a derivative
        return [Outcome(key, "failed", f"{type(error).__name__}: {error}") for key, _ in members]
    seconds = (time.monotonic() - began) / len(members)
    outcomes = []
    for place, (key, seen) in enumerate(members):
        notes = {
            "attack": job.attack,
            "ledger": ", ".join(seen.knowledge.ledger) or "nothing beyond the protocol",
            "visibility": seen.visibility,
            "seconds": f"{seconds:.3f}",
        }
        try:
            if not bool(guess.loss[place].isfinite()):
                raise AttackError("every attempt diverged")
            save_guess(guess_path(job.out, key), guess.x[place], guess.y[place], guess.loss[place], notes)
            outcomes.append(Outcome(key, "done", "", seconds))
        except (AttackError, OSError) as error:
            outcomes.append(Outcome(key, "failed", str(error), seconds))
    return outcomes


def _on(seen: Observation, device: str) -> Observation:
    if device == "cpu":
        return seen
    move = {name: value.to(device) for name, value in seen.params.items()}, {k: v.to(device) for k, v in seen.update.items()}
    return replace(seen, params=move[0], update=move[1])
