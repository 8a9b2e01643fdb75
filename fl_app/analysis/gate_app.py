"""The gate on the captures of somebody's own Flower app: its owner brings what the clients used."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape

import adversary
from adversary import AttackError, Facts
from fl_app.analysis.app_truth import UNEXPLAINED, Truth, check_numbers, explained, read_pairs
from fl_app.analysis.attackers import Attacker
from fl_app.analysis.gate import Ruling, judge_attack, perceptual
from fl_app.analysis.limits import Limits, limits_of
from fl_app.analysis.results import AttackResult
from fl_app.analysis.verdict import UNDECIDED, WEAK, leaks
from fl_app.attacking import audit
from fl_app.attacking.attackers import AT_ONCE, who_of
from fl_app.attacking.audit import AuditSession
from fl_app.attacking.jobs import TaskSpec
from fl_app.attacking.session import folder_name
from fl_app.attacking.worker import InlineWorker
from fl_app.core.ending import terminable
from fl_app.core.text import Tokens
from fl_app.scoring.answers import score_answer
from fl_app.scoring.base import Metric, Tools
from fl_app.scoring.metrics import METRICS
from fl_app.scoring.target import lines_of
from fl_app.scoring.text import Text
from fl_app.store.captures import Captures
from fl_app.store.files import write_atomic

UNCHECKED = "with a defense, --truth cannot be checked against the updates"
UNKNOWN = "whether these attacks are strong enough to tell is not known: judge undefended updates of the app, too"


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
) -> Ruling:
    """Attack the captures of another app, naively and with its defense known, and judge against what its clients used."""
    if truth is None:
        raise ValueError(
            "a reconstruction can only be judged against what the clients used, and nobody but the app's owner has that: "
            "name it with --truth FILE.safetensors (docs/gate.md)"
        )
    attacks = attacks or [adversary.DEFAULT]
    captures = Captures(path / "captures" if (path / "captures").is_dir() else path)
    used, notes, doubts = read_truth(truth, captures, task, check=defense is None)
    most, examples = max(Counter(client for _, client in used).values()), min(len(y) for _, y in used.values())
    whole = Ruling(doubts=doubts, notes=notes)
    whole.notes.extend([UNCHECKED, UNKNOWN] if defense else [])
    whole.notes.extend(f"{one.path} cannot be read: {one.reason}" for one in captures.read_all()[1])
    done: list[Attacker] = []
    for text in attacks:
        told = adversary.build(text).informed(defense, Facts(rounds=most, examples=examples)) if defense else []
        sides: list[tuple[str, str, str | None]] = [("naive" if told else "attack", text, None)]
        sides += [(who_of(one), adversary.text_of(one.attack), defense) for one in told if one.attack is not None]
        for who, attack, known in sides:
            try:
                found = _attack_app(console, captures, task, used, attack, known, limits, metrics, device)
            except AttackError as error:
                whole.doubts.append(f"'{path.name}': {who} {attack}: {error}")
                continue
            found = found._replace(asked=text, who=who)
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
) -> AttackResult:
    """Attack unless it is done, and score beside the reconstructions, which are kept apart by the captures that they are of."""
    seen = (hashlib.sha256(captures.path_of(*key).read_bytes()).hexdigest() for key in sorted(used))
    folder = captures.folder.parent / "attacks" / f"gate-{folder_name(attack, (str(task), str(defense), *seen))}"
    keys = [key for key in captures.targets() if key in used]
    audit.check(captures, keys, task, [attack], defense)
    session = AuditSession(captures, folder, attack, InlineWorker(), task=task, defense=defense, device=device)
    with terminable(), session.alone():
        with console.status(escape(attack[:60])):
            session.work(session.pending(keys), AT_ONCE)
        # Vocabularies begin with what is frequent, and of another app's nothing else is known.
        text = Text(task.space, task.space.vocabulary.words) if isinstance(task.space, Tokens) else None
        tools = Tools(lpips=perceptual(limits) and text is None, text=text)
        targets = [score_answer(folder, key, used[key], session.failures(), metrics, tools).target for key in keys]
        write_atomic(folder / "scores.jsonl", lines_of(targets))
    return AttackResult(folder, attack, attack, "attack", ("defense",) if defense else (), targets, {}, None, {})


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
