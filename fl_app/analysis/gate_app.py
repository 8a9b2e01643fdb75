"""The gate on the captures of somebody's own Flower app: its owner brings what the clients used."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

import adversary
from adversary import AttackError, Facts
from fl_app.analysis.app_truth import UNEXPLAINED, Truth, check_numbers, explained, read_pairs
from fl_app.analysis.attackers import Attacker
from fl_app.analysis.gate import Ruling, judge_attack, perceptual
from fl_app.analysis.gate_privacy import AtRate, at_rate, judge_members
from fl_app.analysis.limits import Limits, limits_of
from fl_app.analysis.membership import QUESTION
from fl_app.analysis.results import AttackResult
from fl_app.analysis.verdict import UNDECIDED, WEAK, leaks
from fl_app.attacking import audit
from fl_app.attacking.attackers import AT_ONCE, who_of
from fl_app.attacking.audit import AuditSession
from fl_app.attacking.jobs import TaskSpec
from fl_app.attacking.session import folder_name
from fl_app.attacking.worker import InlineWorker
from fl_app.core.ending import terminable
from fl_app.core.observation import Candidates
from fl_app.core.text import Tokens
from fl_app.experiment.candidates import read_candidates
from fl_app.scoring.answers import ScoredAnswer, score_answer
from fl_app.scoring.base import Metric, Tools
from fl_app.scoring.membership import Believed, members_among, prints, rows_of
from fl_app.scoring.metrics import METRICS
from fl_app.scoring.questions import save_judged
from fl_app.scoring.target import TargetScore, lines_of
from fl_app.scoring.text import Text
from fl_app.store.captures import Captures
from fl_app.store.files import checksum, write_atomic

MEMBERS = "alignment"
"""Who judges membership where nobody names an attack."""
CLAIMED = "candidates that --truth does not name count as in nobody's data: that is the word of whoever wrote the files"
UNCHECKED = "with a defense, --truth cannot be checked against the updates"
UNKNOWN = "whether these attacks are strong enough to tell is not known: judge undefended updates of the app, too"


class Members(NamedTuple):
    """What membership attacks are asked, and the most that they may find."""

    limit: AtRate
    candidates: Candidates


def members_of(limit: str | None, candidates: Path | None, task: TaskSpec) -> Members | None:
    """`--tpr-at-fpr` and `--candidates` as they were given; ValueError if one is there without the other."""
    if limit is None and candidates is None:
        return None
    if limit is None or candidates is None:
        raise ValueError("with --model, --tpr-at-fpr RATE:SHARE needs --candidates FILE, and that needs --tpr-at-fpr")
    return Members(at_rate(limit), read_candidates(candidates, task.build().space, task.num_classes))


def judge_app(
    console: Console,
    path: Path,
    task: TaskSpec,
    defense: str | None,
    limits: Limits,
    attacks: list[str],
    truth: Path | None,
    *,
    worst: bool,
    metrics: Mapping[str, Metric] = METRICS,
    device: str = "cpu",
    members: Members | None = None,
) -> Ruling:
    """Attack the captures of another app, naively and with its defense known, and judge against what its clients used."""
    if truth is None:
        raise ValueError(
            "a reconstruction can only be judged against what the clients used, and nobody but the app's owner has that: "
            "name it with --truth FILE.safetensors (docs/gate.md)"
        )
    attacks = attacks or [adversary.DEFAULT if members is None else MEMBERS]
    captures = Captures(path / "captures" if (path / "captures").is_dir() else path)
    used, notes, doubts = read_truth(truth, captures, task, check=defense is None)
    most, examples = max(Counter(client for _, client in used).values()), min(len(y) for _, y in used.values())
    whole = Ruling(doubts=doubts, notes=notes)
    whole.notes.extend([UNCHECKED, UNKNOWN] if defense else [])
    whole.notes.extend([CLAIMED] if members else [])
    whole.notes.extend(f"{one.path} cannot be read: {one.reason}" for one in captures.read_all()[1])
    done: list[Attacker] = []
    for text in attacks:
        told = adversary.build(text).informed(defense, Facts(rounds=most, examples=examples)) if defense else []
        sides: list[tuple[str, str, str | None]] = [("naive" if told else "attack", text, None)]
        sides += [(who_of(one), adversary.text_of(one.attack), defense) for one in told if one.attack is not None]
        for who, attack, known in sides:
            try:
                found = _attack_app(console, captures, task, used, attack, known, limits, metrics, device, members)
            except AttackError as error:
                whole.doubts.append(f"'{path.name}': {who} {attack}: {error}")
                continue
            found = found._replace(asked=text, who=who)
            if found.question and members:
                whole.add(judge_members(path.name, found, members.limit))
                continue
            done.append(Attacker([found]))
            whole.add(judge_attack(path.name, found, limits, worst=worst))
    if defense is None and leaks(done, limits, limits_of(metrics)) is False:
        whole.doubts.append(f"{path.name}: {UNDECIDED}: {WEAK}: undefended updates stay within the limits")
    return whole


def _attack_app(
    console: Console,
    captures: Captures,
    task: TaskSpec,
    used: Truth,
    attack: str,
    defense: str | None,
    limits: Limits,
    metrics: Mapping[str, Metric],
    device: str,
    members: Members | None,
) -> AttackResult:
    """Attack unless it is done, and score beside the reconstructions, which are kept apart by the captures that they are of."""
    seen = [hashlib.sha256(captures.path_of(*key).read_bytes()).hexdigest() for key in sorted(used)]
    asked = members.candidates if members else None
    seen += [checksum(asked._asdict())] if asked else []
    folder = captures.folder.parent / "attacks" / f"gate-{folder_name(attack, (str(task), str(defense), *seen))}"
    keys = [key for key in captures.targets() if key in used]
    audit.check(captures, keys, task, [attack], defense)
    session = AuditSession(
        captures, folder, attack, InlineWorker(), task=task, defense=defense, device=device, candidates=asked
    )
    with terminable(), session.alone():
        with console.status(escape(attack[:60])):
            session.work(session.pending(keys), AT_ONCE)
        # Vocabularies begin with what is frequent, and of another app's nothing else is known.
        text = Text(task.space, task.space.vocabulary.words) if isinstance(task.space, Tokens) else None
        tools = Tools(lpips=perceptual(limits) and text is None, text=text)
        answers = [score_answer(folder, key, used[key], session.failures(), metrics, tools) for key in keys]
        targets = [one.target for one in answers]
        if asked and session.built.question == QUESTION:
            targets = _told(folder, answers, used, asked)
        write_atomic(folder / "scores.jsonl", lines_of(targets))
    grants, question = ("defense",) if defense else (), session.built.question
    return AttackResult(folder, attack, attack, "attack", grants, targets, {}, None, {}, question=question)


def _told(folder: Path, answers: Sequence[ScoredAnswer], used: Truth, asked: Candidates) -> list[TargetScore]:
    """Hold what is believed of candidates against what the clients used, and keep it; the scores of all targets."""
    owned = frozenset(one for x, _ in used.values() for one in prints(x))
    believed = {
        one.target.key: Believed(one.believed.scores.double(), members_among(asked, used[one.target.key][0], owned))
        for one in answers
        if one.believed is not None
    }
    if believed:
        save_judged(folder, QUESTION, believed)
    rows = rows_of(believed)
    return [replace(one.target, values=rows.get(one.target.key, {})) for one in answers]


def read_truth(path: Path, captures: Captures, task: TaskSpec, *, check: bool = True) -> tuple[Truth, list[str], list[str]]:
    """(what the clients of an app used, as its owner says; what was made of it; where updates do not follow from it)."""
    if not check:
        pairs = read_pairs(path, captures, task)
        check_numbers(path, pairs)
        return {pair.key: (pair.x, pair.y) for pair in pairs}, [], []
    pairs, errors, notes = explained(path, captures, task)
    doubts = [
        f"{path}: {pair.name} does not explain the captured update (relative error {error:.2g}): check the client's number, "
        "the order of examples, --mean, --std and the rule given to Curious (thorns fit-rule); name a defense with --defense"
        for pair, error in zip(pairs, errors, strict=True)
        if not error <= UNEXPLAINED
    ]
    return {pair.key: (pair.x, pair.y) for pair in sorted(pairs, key=lambda pair: pair.key)}, notes, doubts
