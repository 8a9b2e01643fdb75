"""The gate on the captures of somebody's own Flower app: its owner brings what the clients used."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from adversary.adaptive import informed
from adversary.base import AttackError
from fl_app.analysis.gate import Limit, Verdict, judge_attack, perceptual
from fl_app.analysis.results import AttackResult
from fl_app.attacking import foreign
from fl_app.attacking.audit import audit
from fl_app.attacking.jobs import TaskSpec
from fl_app.attacking.session import folder_name
from fl_app.core.local import local_update
from fl_app.core.observation import Key
from fl_app.scoring.score import score
from fl_app.store.captures import Captures
from fl_app.store.files import RunError, load_tensors, write_atomic
from fl_app.store.reconstructions import guess_path, load_guess

UNEXPLAINED = 0.1
"""From this relative error on, the update is not that of the truth under the stated rule, and a failed attack says nothing."""
Truth = dict[Key, tuple[Tensor, Tensor]]
"""Target -> x (n, *shape) in [0, 1], y int64 (n,)."""


def judge_app(
    console: Console,
    path: Path,
    task: TaskSpec,
    defense: str | None,
    limits: list[Limit],
    attacks: list[str],
    truth: Path | None,
    *,
    worst: bool,
) -> Verdict:
    """Attack the captures of another app, naively and with its defense known, and judge against what its clients used."""
    if truth is None or not attacks:
        raise ValueError(
            "a guess can only be judged against what the clients used, and nobody but the app's owner has that: "
            "name it with --truth FILE.safetensors, and the attack with --attack SPEC (docs/gate.md)"
        )
    captures = Captures(path / "captures" if (path / "captures").is_dir() else path)
    used, doubts = read_truth(truth, captures, task)
    most, examples = max(Counter(client for _, client in used).values()), min(len(y) for _, y in used.values())
    whole = Verdict(doubts=[] if defense else doubts)
    whole.notes.extend(["with a defense, --truth cannot be checked against the updates"] if defense else [])
    whole.notes.extend(f"{one.path} cannot be read: {one.reason}" for one in captures.read_all()[1])
    for text in attacks:
        told = [one for one in informed(text, defense, rounds=most, examples=examples) if one.attack] if defense else []
        sides: list[tuple[str, str, str | None]] = [("naive" if told else "attack", text, None)]
        sides += [(f"adaptive: {one.name}" if one.name else "adaptive", one.attack or "", defense) for one in told]
        for who, attack, known in sides:
            try:
                found = _attack_app(console, captures, task, used, attack, known, perceptual=perceptual(limits))
            except AttackError as error:
                whole.doubts.append(f"{path.name}: {who} {attack}: {error}")
                continue
            whole.add(judge_attack(path.name, found._replace(asked=text, who=who), limits, worst=worst))
    return whole


def _attack_app(
    console: Console, captures: Captures, task: TaskSpec, used: Truth, attack: str, defense: str | None, *, perceptual: bool
) -> AttackResult:
    """Attack unless it is done, and score beside the guesses; those at other captures are not taken for guesses at these."""
    rounds, clients = (sorted({key[part] for key in used if key[part] != -1}) for part in (0, 1))
    seen = (hashlib.sha256(captures.path_of(*key).read_bytes()).hexdigest() for key in sorted(used))
    out = captures.folder.parent / "attacks" / f"gate-{folder_name(attack, (str(task), str(defense), *seen))}"
    audit(
        console,
        captures.folder,
        task.model,
        task.input_shape,
        task.num_classes,
        [attack],
        out=out,
        rounds=",".join(map(str, rounds)),
        clients=",".join(map(str, clients)) or "all",
        normalize=task.normalize,
        defense=defense,
    )
    (folder,) = (path.parent for path in out.glob("*/guesses.jsonl"))
    lines = []
    for line in map(json.loads, (folder / "guesses.jsonl").read_text(encoding="utf-8").splitlines()):
        key = line["round"], line["client"]
        if key not in used:
            continue
        if line["status"] == "done":
            try:
                x, y, _, _ = load_guess(guess_path(folder, key))
                scores = score(x, y, *used[key], perceptual=perceptual)
                line |= {**scores.row(), "unavailable": scores.unavailable}
            except ValueError as error:
                line |= {"status": "failed", "reason": str(error)}
        lines.append(line)
    write_atomic(folder / "scores.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return AttackResult(folder, attack, attack, "attack", ("defense",) if defense else (), lines, {}, None)


def read_truth(path: Path, captures: Captures, task: TaskSpec) -> tuple[Truth, list[str]]:
    """(what the clients of an app used, as its owner says; where the captured updates do not follow from it)."""
    stored, found, doubts, model = load_tensors(path)[0], Truth(), list[str](), task.build().model
    for seen in captures.read_all()[0]:  # what cannot be read is no target
        name = captures.path_of(seen.server_round, seen.client).relative_to(captures.folder).with_suffix("").as_posix()
        if (x := stored.get(f"{name}/x")) is None or (y := stored.get(f"{name}/y")) is None:
            continue
        shape = (seen.num_examples, *task.input_shape)
        if x.shape != shape or not x.is_floating_point() or not bool(((x >= 0) & (x <= 1)).all()):
            raise RunError(f"{path}: {name}/x must be floats in [0, 1] of the shape {shape}, not {tuple(x.shape)} {x.dtype}")
        if y.shape != shape[:1] or y.dtype != torch.int64 or not bool(((y >= 0) & (y < task.num_classes)).all()):
            raise RunError(f"{path}: {name}/y must be {shape[0]} classes below {task.num_classes} as int64")
        fitted = foreign.fitted(seen, model)
        update = local_update(model, fitted.params, x.float(), y, seen.rule)
        ours, theirs = (torch.cat([each[key].flatten() for key in update]) for each in (update, fitted.update))
        if not (error := ((ours - theirs).norm() / theirs.norm()).item()) <= UNEXPLAINED:  # also if it is nan
            doubts.append(
                f"{path}: {name} does not explain the captured update (relative error {error:.2g}): check the client's number, "
                "the order of examples, --mean, --std and the rule given to Curious; name a defense with --defense"
            )
        found[seen.server_round, seen.client] = x.float(), y
    if not found:
        raise RunError(f"{path} names nothing that was captured: it needs tensors round-0001/client-00/x and /y, and so on")
    return found, doubts
