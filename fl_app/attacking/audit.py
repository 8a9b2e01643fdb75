"""`thorns attack --model`: attack what `Curious` captured of somebody else's app. No truth is known, so nothing is scored."""

import json
import os
from pathlib import Path
from typing import Any

import typer
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import adversary
import client_defenses
from adversary.base import AttackError
from fl_app.attacking import foreign
from fl_app.attacking.jobs import Job, Outcome, TaskSpec
from fl_app.attacking.session import folder_name
from fl_app.attacking.worker import Worker, make_worker
from fl_app.core.observation import Key, Knowledge
from fl_app.core.seeds import derive
from fl_app.core.selection import select
from fl_app.store.captures import Captures
from fl_app.store.files import RunError, write_atomic
from fl_app.store.reconstructions import guess_path, key_of, load_guess

AT_ONCE = 64
THREADS = 1  # two on two busy cores took 28 times as long for a small model; larger ones would gain a little
ROWS, COLUMNS, TILE, GAP, LABEL = 24, 16, 64, 8, 120
Normalization = tuple[tuple[float, ...], tuple[float, ...]]


def audit(
    console: Console,
    captures: Path,
    model: str,
    input_shape: tuple[int, ...],
    classes: int,
    attacks: list[str],
    *,
    out: Path | None = None,
    rounds: str = "all",
    clients: str = "all",
    limit: int = 0,
    normalize: Normalization | None = None,
    defense: str | None = None,
    grants: list[str] | None = None,
    worker_name: str = "inline",
    seed: int = 0,
) -> Path:
    """Attack the captures in a folder with the model "module:function" of the current directory; returns where results are.

    `normalize` = (mean, std) is what the app does to its inputs; `defense` grants the attacker the spec of the clients'
    defense. Every name is checked before the first attack starts, and what is done already is not done again.
    """
    if grants:
        raise AttackError(
            f"{', '.join(grants)} cannot be granted, as no truth is known here; --defense SPEC grants the defense"
        )
    for text in attacks:
        adversary.build(text)
    if defense is not None:
        client_defenses.build(defense)
    folder = captures / "captures" if (captures / "captures").is_dir() else captures
    found, (in_round, of_client) = Captures(folder), (select(rounds, 1, "rounds"), select(clients, 0, "clients"))
    keys = [key_of(path) for path in found.paths()]
    keys = [key for key in keys if key[0] in in_round and (key[1] == -1 or key[1] in of_client)][: limit or None]
    if not keys:
        raise RunError(f"{captures} has no captures of these rounds and clients: wrap the app's strategy in Curious and run it")
    task = TaskSpec(model, input_shape, classes, normalize, Path.cwd())
    _check(found, keys, task)
    out = out or folder.parent / "attacks"
    worker = make_worker(worker_name)
    try:
        for text in attacks:
            place = out / folder_name(text, tuple(str(fact) for fact in (model, normalize, defense) if fact))
            _attack(console, folder, place, text, task, keys, defense, seed, worker)
    except KeyboardInterrupt:
        console.print("Stopped. What was finished is kept; the same command goes on.")
        raise typer.Exit(130) from None
    finally:
        worker.close()
    return out


def shape_of(text: str) -> tuple[int, ...]:
    """`"1,8,8"` -> the shape of an input."""
    try:
        shape = tuple(int(side) for side in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ValueError(f"--model needs the shape of one input, such as --input-shape 1,8,8, not {text!r}")
    return shape


def normalization(mean: str, std: str) -> Normalization | None:
    """`("0.5,0.5,0.5", "0.2,0.2,0.2")` -> numbers by channel; None if both are empty."""
    if not mean and not std:
        return None
    try:
        means, stds = (tuple(float(value) for value in text.split(",")) for text in (mean, std))
    except ValueError:
        means, stds = (), ()
    if not means or len(means) != len(stds) or min(stds) <= 0:
        raise ValueError(f"--mean and --std take one number a channel each, such as 0.5,0.5,0.5, not {mean!r} and {std!r}")
    return means, stds


def _check(captures: Captures, keys: list[Key], task: TaskSpec) -> None:
    """Refuse a model that cannot work, or whose weights were not captured, before any attack."""
    built = task.build()
    seen, _ = captures.read_all({keys[0][0]}, {keys[0][1]})
    for one in seen:  # none if the file is damaged: the job will say so and go on
        foreign.fitted(one, built.model)


def _attack(
    console: Console,
    captures: Path,
    out: Path,
    attack: str,
    task: TaskSpec,
    keys: list[Key],
    defense: str | None,
    seed: int,
    worker: Worker,
) -> None:
    open_ = [key for key in keys if not guess_path(out, key).exists()]
    if len(open_) < len(keys):
        console.print(f"{len(keys) - len(open_)} of {len(keys)} targets were attacked before", highlight=False)
    failed: dict[Key, str] = {}
    parts = _parts(open_)
    for part in track(parts, attack[:40], console=console) if parts else ():
        granted = {key: Knowledge(defense=defense) for key in part} if defense else {}
        job = Job(captures, out, attack, task, part, derive(seed, "audit", attack, *part[0]), granted, THREADS)
        outcomes: list[Outcome] = worker.run(job)
        failed |= {outcome.key: outcome.reason for outcome in outcomes if outcome.status == "failed"}
    _show(console, out, attack, task, keys, failed)


def _parts(keys: list[Key]) -> list[tuple[Key, ...]]:
    """The keys of each job: all of one round."""
    by_round: dict[int, list[Key]] = {}
    for key in keys:
        by_round.setdefault(key[0], []).append(key)
    return [tuple(all_[i : i + AT_ONCE]) for all_ in by_round.values() for i in range(0, len(all_), AT_ONCE)]


def _show(console: Console, out: Path, attack: str, task: TaskSpec, keys: list[Key], failed: dict[Key, str]) -> None:
    lines: list[dict[str, Any]] = []
    pictures: list[tuple[str, Tensor]] = []
    table = Table("target", "examples", "loss of the attack", "the server saw", "granted", box=None, header_style="bold")
    for key in keys:
        line: dict[str, Any] = {"round": key[0], "client": key[1]}
        name = f"round {key[0]}, " + ("aggregate" if key[1] == -1 else f"client {key[1]}")
        try:
            if key in failed:
                raise AttackError(failed[key])
            x, y, loss, notes = load_guess(guess_path(out, key))
        except ValueError as error:
            lines.append({**line, "status": "failed", "reason": str(error)})
            console.print(f"{name} failed: {error}", highlight=False, soft_wrap=True)
            continue
        lines.append({**line, "status": "done", "examples": len(y), "classes": y.tolist(), "loss": loss, **notes})
        table.add_row(name, str(len(y)), f"{loss:.3g}", notes.get("visibility", "?"), notes.get("ledger", "?"))
        pictures.append((name, x))
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "guesses.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    console.print(f"[bold]{attack}[/bold]", highlight=False, soft_wrap=True)
    if not pictures:
        raise AttackError(f"none of the {len(keys)} targets could be attacked; the reasons are in {out / 'guesses.jsonl'}")
    console.print(table)
    console.print("No guess is scored here: a low loss only says that it explains the update.")
    if len(task.input_shape) == 3 and task.input_shape[0] in (1, 3):
        path = out / "guesses.png"
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        sheet(pictures).save(temporary, format="PNG")
        temporary.replace(path)
    else:
        console.print(f"Inputs of the shape {task.input_shape} are not pictures: the guesses are in safetensors files alone.")
    console.print(f"Results: [bold]{os.path.relpath(out)}[/bold]", soft_wrap=True)


def sheet(rows: list[tuple[str, Tensor]]) -> Image.Image:
    """One row of guesses x (n, 1 or 3, h, w) a target, with its name before it; at most 24 rows of 16."""
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
