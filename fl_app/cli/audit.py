"""`thorns attack --model`: attack captures of somebody else's app and show the reconstructions; nothing is scored."""

import json
import os
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from adversary import AttackError
from fl_app.attacking import audit as auditing
from fl_app.attacking.attackers import AT_ONCE
from fl_app.attacking.audit import Answer, AuditSession
from fl_app.attacking.jobs import TaskSpec
from fl_app.attacking.worker import make_worker
from fl_app.cli.attack_bar import AttackBar, stopped
from fl_app.core.ending import terminable
from fl_app.core.observation import Key
from fl_app.core.text import Tokens
from fl_app.experiment.assets import device_of
from fl_app.store.files import write_atomic
from fl_app.store.reconstructions import guess_path, load_guess
from fl_app.sweeps.live import say

MOST = 5
"""Candidates that are shown of a target."""
ROWS, COLUMNS, TILE, GAP, LABEL = 24, 16, 64, 8, 120


def audit(
    console: Console,
    captures: Path,
    task: TaskSpec,
    attacks: list[str],
    *,
    out: Path | None = None,
    rounds: str = "all",
    clients: str = "all",
    limit: int = 0,
    defense: str | None = None,
    grants: list[str] | None = None,
    worker_name: str = "inline",
    seed: int = 0,
    threads: int | None = None,
    device: str = "cpu",
    candidates: Path | None = None,
) -> Path:
    """Attack the captures in a folder with what the app's owner says of its model; returns where results are.

    `defense` grants the attacker the spec of the clients' defense. Every name is checked before the first attack starts, and
    what is done already is not done again.
    """
    auditing.refuse_grants(grants)
    found = auditing.captures_in(captures)
    keys = auditing.chosen(found, rounds, clients, limit)
    auditing.check(found, keys, task, attacks, defense)
    out = out or found.folder.parent / "attacks"
    worker = make_worker(worker_name)
    try:
        place = device_of(device)
        sessions = auditing.sessions_of(
            found,
            out,
            task,
            attacks,
            worker,
            defense=defense,
            candidates=candidates,
            seed=seed,
            threads=threads,
            device=place,
        )
        for session in sessions:
            with terminable(), session.alone():
                _attack(console, session, keys)
                _show(console, session, keys)
    except KeyboardInterrupt as end:
        raise stopped(console, end) from None
    finally:
        worker.close()
    return out


def _attack(console: Console, session: AuditSession, keys: list[Key]) -> None:
    open_ = session.pending(keys)
    if len(open_) < len(keys):
        console.print(f"{len(keys) - len(open_)} of {len(keys)} targets were attacked before", highlight=False)
    if not open_:
        return
    jobs = [len(part) for part in session.parts(open_, AT_ONCE)]
    with AttackBar(console, session.attack, jobs) as bar:
        session.work(open_, AT_ONCE, lambda outcomes: bar.job_done(len(outcomes)))


def _show(console: Console, session: AuditSession, keys: list[Key]) -> None:
    found = auditing.answers_of(session, keys)
    heads = ("candidates, the likeliest first",) if session.built.question else ("examples", "loss of the attack")
    table = Table("target", *heads, "the server saw", "granted", box=None, header_style="bold")
    done = [answer for answer in found if not answer.reason]
    for answer in found:
        if answer.reason:
            say(console, f"{answer.name} failed: {answer.reason}")
        else:
            seen, told = answer.notes.get("visibility", "?"), answer.notes.get("ledger", "?")
            shown = (likeliest(answer),) if answer.scores else (str(len(answer.classes)), f"{answer.loss:.3g}")
            table.add_row(answer.name, *shown, seen, told)
    lines = session.folder / "reconstructions.jsonl"
    write_atomic(lines, "".join(json.dumps(answer.to_dict()) + "\n" for answer in found))
    console.print(f"[bold]{escape(session.attack)}[/bold]", highlight=False, soft_wrap=True)
    if not done:
        raise AttackError(f"none of the {len(keys)} targets could be attacked; the reasons are in {lines}")
    console.print(table)
    if session.built.question:
        console.print("Nothing is scored here, as no truth is known: higher says that the candidate rather was there.")
        console.print(f"Results: [bold]{escape(os.path.relpath(session.folder))}[/bold]", soft_wrap=True)
        return
    console.print("No reconstruction is scored here: a low loss only says that it explains the update.")
    if hint := auditing.doubt(session, [answer.key for answer in done]):
        say(console, hint)
    _save_sheet(console, session, done)
    console.print(f"Results: [bold]{escape(os.path.relpath(session.folder))}[/bold]", soft_wrap=True)


def likeliest(answer: Answer) -> str:
    """The candidates with the highest scores, by their place in the file from 0."""
    order = sorted(range(len(answer.scores)), key=lambda place: -answer.scores[place])[:MOST]
    return ", ".join(f"{place} ({answer.scores[place]:.3g})" for place in order)


def _save_sheet(console: Console, session: AuditSession, done: list[Answer]) -> None:
    shape, space = session.known.input_shape, session.known.space
    if isinstance(space, Tokens):
        kept = [(answer.name, load_guess(guess_path(session.folder, answer.key)).x) for answer in done]
        said = "".join(f"{name}: {space.vocabulary.decode(row)}\n" for name, x in kept for row in x)
        write_atomic(session.folder / "reconstructions.txt", said)
        console.print(said.rstrip(), markup=False, highlight=False, soft_wrap=True)
        return
    if len(shape) != 3 or shape[0] not in (1, 3):
        console.print(f"Inputs of the shape {shape} are not pictures: the reconstructions are in safetensors files alone.")
        return
    path = session.folder / "reconstructions.png"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    rows = [(answer.name, load_guess(guess_path(session.folder, answer.key)).x) for answer in done[:ROWS]]
    sheet(rows).save(temporary, format="PNG")
    temporary.replace(path)


def sheet(rows: list[tuple[str, Tensor]]) -> Image.Image:
    """One row of reconstructions x (n, 1 or 3, h, w) per target, with its name before it; at most 24 rows of 16."""
    shown = [(name, [_picture(one) for one in x[:COLUMNS]]) for name, x in rows[:ROWS]]
    width = max(sum(picture.width + GAP for picture in pictures) for _, pictures in shown)
    height = max(picture.height for _, pictures in shown for picture in pictures) + GAP
    paper = Image.new("RGB", (LABEL + width + GAP, height * len(shown) + GAP), (255, 255, 255))
    draw, font = ImageDraw.Draw(paper), ImageFont.load_default(12)
    for place, (name, pictures) in enumerate(shown):
        top, left = GAP + place * height, LABEL
        draw.multiline_text((GAP, top), name.replace(", ", "\n"), (20, 20, 20), font=font)
        for picture in pictures:
            paper.paste(picture, (left, top))
            left += picture.width + GAP
    return paper


def _picture(x: Tensor) -> Image.Image:
    """(1 or 3, h, w) in [0, 1], small ones scaled up by a whole number."""
    factor = max(1, TILE // max(x.shape[1:]))
    pixels = (x.clamp(0, 1) * 255).round().byte().expand(3, -1, -1).repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().cpu().numpy())
