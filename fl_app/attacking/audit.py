"""Attacking what `Curious` captured of somebody else's app: its owner names the model, and no truth is known."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch

import adversary
import client_defenses
from adversary import AttackError
from fl_app.attacking import foreign
from fl_app.attacking.jobs import TaskSpec
from fl_app.attacking.session import CaptureSession, folder_name
from fl_app.attacking.worker import Worker
from fl_app.core.errors import said
from fl_app.core.local import local_update
from fl_app.core.observation import Candidates, Key, Knowledge
from fl_app.core.selection import select
from fl_app.core.text import Tokens, Vocabulary
from fl_app.data.vocabularies import read_vocabulary
from fl_app.experiment.candidates import read_candidates
from fl_app.store.captures import Captures
from fl_app.store.files import RunError, checksum
from fl_app.store.reconstructions import CandidateScores, guess_path, load_answer, load_guess

THREADS = 1  # two on two busy cores took 28 times as long for a small model; larger ones would gain a little
BADLY = 0.1
"""From this relative error on, a reconstruction is not what the client used under the stated model and rule."""
Normalization = tuple[tuple[float, ...], tuple[float, ...]]


class AuditSession(CaptureSession):
    """One attack on the captures of a foreign app; `defense` grants the attacker the spec of its clients' defense."""

    def __init__(
        self,
        captures: Captures,
        folder: Path,
        attack: str,
        worker: Worker,
        *,
        task: TaskSpec,
        defense: str | None = None,
        seed: int = 0,
        threads: int | None = None,
        device: str = "cpu",
        candidates: Candidates | None = None,
    ) -> None:
        super().__init__(captures, folder, attack, worker, seed=seed, threads=threads or THREADS)
        self.known, self.defense, self._device, self.candidates = task, defense, device, candidates

    @property
    def device(self) -> str:
        """The one that was asked for."""
        return self._device

    def task(self) -> TaskSpec:
        """The model that the app's owner named."""
        return self.known

    def knowledge(self, key: Key) -> Knowledge | None:
        """The defense, if it was granted, and the candidates that an inference attack is asked about."""
        asked = self.candidates if self.built.question else None
        return Knowledge(defense=self.defense, candidates=asked) if self.defense or asked else None


@dataclass(frozen=True)
class Answer:
    """What an attack made of a target: classes and loss of a reconstruction, or scores of candidates, or why neither."""

    key: Key
    reason: str = ""
    classes: tuple[int, ...] = ()
    loss: float = 0.0
    notes: dict[str, str] = field(default_factory=dict)
    scores: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """The target, for people."""
        return f"round {self.key[0]}, " + ("aggregate" if self.key[1] == -1 else f"client {self.key[1]}")

    def to_dict(self) -> dict[str, object]:
        """The answer as a line of reconstructions.jsonl."""
        place = {"round": self.key[0], "client": self.key[1]}
        if self.reason:
            return {**place, "status": "failed", "reason": self.reason}
        if self.scores:
            return {**place, "status": "done", "scores": list(self.scores), **self.notes}
        found = {"examples": len(self.classes), "classes": list(self.classes), "loss": self.loss}
        return {**place, "status": "done", **found, **self.notes}


def answers_of(session: CaptureSession, keys: list[Key]) -> list[Answer]:
    """What a session has on disk about some targets; a damaged file is an answer with its reason."""
    failed, found = session.failures(), []
    for key in keys:
        if key in failed:
            found.append(Answer(key, failed[key]))
            continue
        try:
            kept = load_answer(guess_path(session.folder, key))
            if isinstance(kept, CandidateScores):
                found.append(Answer(key, notes=kept.notes, scores=tuple(kept.scores.tolist())))
                continue
            found.append(Answer(key, "", tuple(kept.y.tolist()), kept.loss, kept.notes))
        except ValueError as error:
            found.append(Answer(key, str(error)))
    return found


def unexplained(session: AuditSession, keys: list[Key]) -> list[float]:
    """The relative error |ours - theirs| / |theirs| of the update that follows from each reconstruction on disk."""
    model, found = session.known.build().model, []
    for seen in session.captures.read_all({key[0] for key in keys}, {key[1] for key in keys})[0]:
        path = guess_path(session.folder, (seen.server_round, seen.client))
        if not path.exists():
            continue
        kept, theirs = load_guess(path), foreign.fitted(seen, model)
        ours = local_update(model, theirs.params, kept.x, kept.y, theirs.rule)
        a, b = (torch.cat([each[name].flatten() for name in theirs.update]) for each in (ours, theirs.update))
        found.append(float((a - b).norm() / b.norm()))
    return found


def doubt(session: AuditSession, keys: list[Key]) -> str:
    """One line if reconstructions do not explain the updates, which a wrong model or rule makes look safe; else empty."""
    if session.built.question:
        return ""  # nothing is rebuilt
    errors = sorted(unexplained(session, keys))
    if session.defense or not errors or errors[len(errors) // 2] <= BADLY:
        return ""
    inputs = "" if session.known.normalize else "if the app normalises its inputs, name --mean and --std; "
    return (
        f"The reconstructions explain the updates badly (relative error {errors[len(errors) // 2]:.2g}), so this attack is no "
        f"sign of safety: {inputs}if its clients train by another rule, see thorns fit-rule; or take more iterations"
    )


def captures_in(path: Path) -> Captures:
    """The captures of a folder, or of the folder `captures` in it."""
    return Captures(path / "captures" if (path / "captures").is_dir() else path)


def of_another_app(path: Path) -> bool:
    """Whether a folder is neither a run nor a sweep, but holds captures."""
    return not any((path / name).exists() for name in ("experiment.toml", "plan.json")) and bool(captures_in(path).paths())


def chosen(captures: Captures, rounds: str, clients: str, limit: int = 0) -> list[Key]:
    """The captured targets of some rounds and clients; RunError if there are none."""
    in_round, of_client = select(rounds, 1, "rounds"), select(clients, 0, "clients")
    keys = [
        (server_round, client)
        for server_round, client in captures.targets()
        if server_round in in_round and (client == -1 or client in of_client)
    ]
    if not keys:
        raise RunError(
            f"{captures.folder} has no captures of these rounds and clients: wrap the app's strategy in Curious and run it"
        )
    return keys[: limit or None]


def check(captures: Captures, keys: list[Key], task: TaskSpec, attacks: list[str], defense: str | None) -> None:
    """Refuse bad names, a model that cannot work, or whose weights were not captured, before any attack."""
    for text in attacks:
        adversary.build(text)
    if defense is not None:
        client_defenses.build(defense)
    built = task.build()
    seen, _ = captures.read_all({keys[0][0]}, {keys[0][1]})
    for one in seen:  # none if the file is damaged: the job will say so and go on
        foreign.fitted(one, built.model)


def sessions_of(
    captures: Captures,
    out: Path,
    task: TaskSpec,
    attacks: list[str],
    worker: Worker,
    *,
    defense: str | None,
    seed: int = 0,
    threads: int | None = None,
    device: str = "cpu",
    candidates: Path | None = None,
) -> list[AuditSession]:
    """A session for each attack, in a folder of its own by all that its results depend on."""
    asked = read_candidates(candidates, task.build().space, task.num_classes) if candidates else None
    told = f"candidates {checksum(asked._asdict())}" if asked else ""
    facts = tuple(str(fact) for fact in (task.model, task.normalize, defense, told) if fact)
    return [
        AuditSession(
            captures,
            out / folder_name(text, facts),
            text,
            worker,
            task=task,
            defense=defense,
            seed=seed,
            threads=threads,
            device=device,
            candidates=asked,
        )
        for text in attacks
    ]


def shape_of(text: str) -> tuple[int, ...]:
    """`"1,8,8"` -> the shape of an input."""
    try:
        shape = tuple(int(side) for side in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ValueError(f"--model needs the shape of one input, such as --input-shape 1,8,8, not {text!r}")
    return shape


def task_of(model: str, input_shape: str, classes: int, mean: str, std: str, vocabulary: str = "") -> TaskSpec:
    """What the owner of an app says of its model, which is imported from the current directory; a vocabulary is of text."""
    shape, normalize = shape_of(input_shape), normalization(mean, std)
    if vocabulary:
        if len(shape) != 1 or normalize is not None:
            raise ValueError(f"--vocabulary is for text: --input-shape is its length alone, without --mean, not {input_shape}")
        return TaskSpec(model, shape, classes, None, Path.cwd(), space=Tokens(_vocabulary(vocabulary), shape[0]))
    if normalize is not None and len(normalize[0]) != shape[0]:
        raise ValueError(f"--mean and --std take one number per channel, and inputs of {input_shape} have {shape[0]}")
    return TaskSpec(model, shape, classes, normalize, Path.cwd())


def _vocabulary(text: str) -> Vocabulary:
    """The tokens in a file, one in a line, as BERT's vocab.txt has them; or so many of which nothing else is known."""
    try:
        return Vocabulary.numbered(int(text)) if text.isdecimal() else read_vocabulary(Path(text))
    except (ValueError, OSError) as error:
        what = "--vocabulary takes a number of tokens or a file of them, one in a line"
        raise ValueError(f"{what}, not {text!r}: {said(error)}") from None


def normalization(mean: str, std: str) -> Normalization | None:
    """`("0.5,0.5,0.5", "0.2,0.2,0.2")` -> numbers by channel; None if both are empty."""
    if not mean and not std:
        return None
    try:
        means, stds = (tuple(float(value) for value in text.split(",")) for text in (mean, std))
    except ValueError:
        means, stds = (), ()
    if not means or len(means) != len(stds) or not all(map(math.isfinite, (*means, *stds))) or min(stds) <= 0:
        raise ValueError(f"--mean and --std take one number per channel each, such as 0.5,0.5,0.5, not {mean!r} and {std!r}")
    return means, stds


def refuse_grants(grants: list[str] | None) -> None:
    """Grants come from the truth, which nobody but the app's owner has."""
    if grants:
        raise AttackError(
            f"{', '.join(grants)} cannot be granted, as no truth is known here; --defense SPEC grants the defense"
        )
