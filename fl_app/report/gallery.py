"""Reconstructions to look at: the target that leaks most, the median and the one that leaks least, or all of them."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from torch import Tensor

from fl_app.analysis.attackers import Attacker
from fl_app.analysis.conditions import Condition
from fl_app.analysis.results import RunResult
from fl_app.core.table import Rows
from fl_app.core.text import Tokens
from fl_app.experiment.fingerprint import check_data
from fl_app.scoring.metrics import METRICS
from fl_app.scoring.passages import Word, marked, words
from fl_app.scoring.pictures import Pictured, picture, truth_of
from fl_app.scoring.target import TargetScore

EXAMPLES = 4
"""Of a target with many examples the first ones are shown."""
ALL = 500
"""Of a setting with more targets the page of all shows those that leak most."""
SIDE = 112
"""Larger images are shrunk to this, or a page would have no end."""

NUMBERS = {
    "psnr": "{} dB",
    "ssim": "SSIM {}",
    "cells": "{} of the cells right",
    "rouge1": "ROUGE-1 {} %",
    "rouge_l": "ROUGE-L {} %",
}
"""What is said below a reconstruction."""


class Line(NamedTuple):
    """A row of a table in the gallery: whose it is, its cells, and which of them are right."""

    who: str
    cells: list[str]
    right: list[bool]


class Sentence(NamedTuple):
    """A text in the gallery: whose it is, and its words with their marks."""

    who: str
    words: list[Word]


class Shown(NamedTuple):
    """One target in the gallery: rows of images with captions, as data URLs; of a table its cells; of text its words."""

    rank: str
    where: str
    rows: list[tuple[str, list[str], str]]
    """(who, images, numbers below)."""
    note: str
    names: Sequence[str] = ()
    """Of a table: its columns."""
    lines: Sequence[Line] = ()
    sentences: Sequence[Sentence] = ()


class Exhibit(NamedTuple):
    """The gallery of one condition."""

    condition: Condition
    worst: str
    shown: list[Shown]
    problem: str
    targets: int
    """How many targets there are to show."""

    @property
    def measure(self) -> str:
        """What its targets are ranked by."""
        return self.condition.measures[self.condition.leading].title

    @property
    def sentences(self) -> bool:
        """Whether texts are shown."""
        return any(one.sentences for one in self.shown)

    @property
    def page(self) -> str:
        """The page of all targets, beside the tables."""
        return f"targets-{self.condition.number}.html"


def data_url(x: Tensor) -> str:
    """(1 or 3, h, w) in [0, 1] -> a PNG in a data URL."""
    pixels = (x.detach().float().nan_to_num(0).clamp(0, 1) * 255).round().byte().cpu()
    image = Image.fromarray(pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy())
    if max(image.size) > SIDE:
        image.thumbnail((SIDE, SIDE))
    out = io.BytesIO()
    image.save(out, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def _by_leakage(condition: Condition, worst: Attacker) -> list[tuple[RunResult, TargetScore]]:
    """The targets by PSNR, or what stands for it, those that leak most first."""
    done = [
        (leak, condition.run_of(part), target)
        for part in worst.parts
        for target in part.targets
        if target.done and (leak := target.values.get(condition.leading)) is not None
    ]
    return [(run, target) for _, run, target in sorted(done, key=lambda one: -one[0])]


def _ranks(number: int) -> dict[str, int]:
    """What is shown of so many targets: the most leaked, the median (the lower of two) and the least leaked one."""
    if number < 3:
        return {"most leaked": 0, "least leaked": 1} if number == 2 else {"only target": 0} if number else {}
    return {"most leaked": 0, "median": number // 2, "least leaked": number - 1}


def _part(attacker: Attacker, run: RunResult, key: tuple[int, int]) -> tuple[Path, TargetScore] | None:
    """The folder and the score of an attacker's work on a target of a run."""
    for part in attacker.parts:
        if part.folder in [one.folder for one in run.attacks]:
            return next(((part.folder, target) for target in part.targets if target.key == key), None)
    return None


def _numbers(target: TargetScore) -> str:
    if not target.done:
        return f"failed: {target.reason or 'no reason is recorded'}"
    shown = {name: value for name in NUMBERS if (value := target.values.get(name)) is not None}
    return ", ".join(NUMBERS[name].format(METRICS[name].text(value)) for name, value in shown.items())


def exhibit(condition: Condition, *, every: bool = False) -> Exhibit | None:
    """The gallery of a condition, or every target; None if it was not attacked. Data that cannot be had is said, not raised."""
    worst = condition.answered()  # the pictures on disk are its answers
    if worst is None:
        return None
    beside = [one for one in (condition.naive(), condition.told()) if one is not None]
    found = _by_leakage(condition, worst)
    ranks = {f"{place + 1} of {len(found)}": place for place in range(min(len(found), ALL))} if every else _ranks(len(found))
    try:
        shown = [_shown(rank, *found[place], beside) for rank, place in ranks.items()]
    except (ValueError, RuntimeError, OSError) as error:
        return Exhibit(condition, worst.name, [], f"no pictures: {error}", 0)
    return Exhibit(condition, worst.name, shown, "", len(found))


def _shown(rank: str, run: RunResult, target: TargetScore, beside: Sequence[Attacker]) -> Shown:
    parts = [(attacker, found) for attacker in beside if (found := _part(attacker, run, target.key)) is not None]
    check_data(run.path, run.experiment)
    assets = truth_of(run.experiment)
    pictured = picture(assets, target.key, [folder for _, (folder, _) in parts], EXAMPLES)
    some = len(pictured.truth)
    note = f"the first {some} of {pictured.examples} examples" if pictured.examples > some else ""
    where = f"seed {run.experiment.seed}, {target.where}"
    whose = [f"{attacker.who}: {_numbers(own)}" for attacker, (_, own) in parts]
    if isinstance(assets.space, Tokens):
        return Shown(rank, where, [], note, sentences=_sentences(assets.space, pictured, whose))
    if isinstance(assets.space, Rows):
        lines = _lines(assets.space, pictured, [attacker.who for attacker, _ in parts])
        names = [column.name for column in assets.space.columns]
        return Shown(rank, where, [], "; ".join([note, *whose] if note else whose), names, lines)
    rows = [("truth", [data_url(x) for x in pictured.truth], "")]
    for (attacker, (_, own)), rebuilt in zip(parts, pictured.rebuilt, strict=True):
        images = [] if rebuilt is None else [data_url(x) for x in rebuilt]
        rows.append((attacker.who, images, _numbers(own)))
    return Shown(rank, where, rows, note)


def _sentences(tokens: Tokens, pictured: Pictured, whose: Sequence[str]) -> list[Sentence]:
    """The true words of each example and below them each attacker's."""
    found = []
    for place, truth in enumerate(pictured.truth):
        found.append(Sentence("truth", [Word(word) for word in words(tokens, truth)]))
        for who, rebuilt in zip(whose, pictured.rebuilt, strict=True):
            if rebuilt is not None:
                found.append(Sentence(who, marked(tokens, rebuilt[place], truth)))
    return found


def _lines(rows: Rows, pictured: Pictured, whose: Sequence[str]) -> list[Line]:
    """The true cells of each example and below them each attacker's."""
    found = []
    for place, truth in enumerate(pictured.truth):
        found.append(Line("truth", rows.text(truth), [False] * len(rows.columns)))
        for who, rebuilt in zip(whose, pictured.rebuilt, strict=True):
            if rebuilt is not None:
                found.append(Line(who, rows.text(rebuilt[place]), rows.right(rebuilt[place], truth).tolist()))
    return found
