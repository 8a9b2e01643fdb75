"""Reconstructions to look at: the target that leaks most, the median and the one that leaks least, by the worst attacker."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from torch import Tensor

from fl_app.analysis.measures import PSNR, SSIM
from fl_app.analysis.results import RunResult
from fl_app.analysis.settings import Attacker, Setting
from fl_app.scoring.pictures import picture, truth_of

EXAMPLES = 4
"""Of a target with many examples the first ones are shown."""
SIDE = 112
"""Larger images are shrunk to this, or a page would have no end."""


class Shown(NamedTuple):
    """One target in the gallery: rows of images with captions, as data URLs."""

    rank: str
    where: str
    rows: list[tuple[str, list[str], str]]
    """(who, images, numbers below)."""
    note: str


class Exhibit(NamedTuple):
    """The gallery of one setting."""

    setting: Setting
    worst: str
    shown: list[Shown]
    problem: str


def data_url(x: Tensor) -> str:
    """(1 or 3, h, w) in [0, 1] -> a PNG in a data URL."""
    pixels = (x.detach().float().nan_to_num(0).clamp(0, 1) * 255).round().byte().cpu()
    image = Image.fromarray(pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy())
    if max(image.size) > SIDE:
        image.thumbnail((SIDE, SIDE))
    out = io.BytesIO()
    image.save(out, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def _ranked(worst: Attacker) -> list[tuple[str, RunResult, dict[str, Any]]]:
    """The most leaked, the median (the lower of two) and the least leaked target by PSNR; fewer if there are fewer."""
    done = [(run, line) for run, _, line in worst.targets if line.get("status") == "done" and line.get("psnr") is not None]
    done.sort(key=lambda one: -one[1]["psnr"])
    places = {"most leaked": 0, "median": len(done) // 2, "least leaked": len(done) - 1}
    if len(done) < 3:
        places = {"most leaked": 0, "least leaked": 1} if len(done) == 2 else {"only target": 0} if done else {}
    return [(words, *done[place]) for words, place in places.items()]


def _part(attacker: Attacker, run: RunResult, key: tuple[int, int]) -> tuple[Path, dict[str, Any]] | None:
    """The folder and the line of an attacker's work on a target."""
    for other, part, line in attacker.targets:
        if other.path == run.path and (line["round"], line["client"]) == key:
            return part.folder, line
    return None


def _numbers(line: dict[str, Any]) -> str:
    if line.get("status") != "done":
        return f"failed: {line.get('reason', 'no reason is recorded')}"
    shown = [f"{PSNR.text(line[PSNR.key])} {PSNR.unit}"] if line.get(PSNR.key) is not None else []
    return ", ".join([*shown, f"{SSIM.title} {SSIM.text(line[SSIM.key])}"] if line.get(SSIM.key) is not None else shown)


def exhibit(setting: Setting) -> Exhibit | None:
    """The gallery of a setting; None if it was not attacked. Data that cannot be had is said, not raised."""
    worst = setting.worst()
    if worst is None:
        return None
    beside = list(dict.fromkeys(one for one in (setting.naive, setting.informed) if one is not None))
    try:
        shown = [_shown(rank, run, line, beside) for rank, run, line in _ranked(worst)]
    except (ValueError, RuntimeError, OSError) as error:
        return Exhibit(setting, worst.name, [], f"no pictures: {error}")
    return Exhibit(setting, worst.name, shown, "")


def _shown(rank: str, run: RunResult, line: dict[str, Any], beside: Sequence[Attacker]) -> Shown:
    key = int(line["round"]), int(line["client"])
    parts = [(attacker, found) for attacker in beside if (found := _part(attacker, run, key)) is not None]
    target = picture(truth_of(run.experiment), key, [folder for _, (folder, _) in parts], EXAMPLES)
    rows = [("truth", [data_url(x) for x in target.truth], "")]
    for (attacker, (_, own)), guess in zip(parts, target.guesses, strict=True):
        images = [] if guess is None else [data_url(x) for x in guess]
        rows.append((attacker.who, images, _numbers(own)))
    who = "aggregate" if key[1] == -1 else f"client {key[1]}"
    note = f"the first {len(target.truth)} of {target.examples} examples" if target.examples > len(target.truth) else ""
    return Shown(rank, f"seed {run.experiment.seed}, round {key[0]}, {who}", rows, note)
