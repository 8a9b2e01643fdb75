#!/usr/bin/env python
"""What defenses leave of the images that malicious servers read: the attacked cells of a sweep, without its trainings.

    .venv/bin/python scripts/bench_malicious_defenses.py                 # a table as Markdown
    .venv/bin/python scripts/bench_malicious_defenses.py --targets loki

Cells, strengths and seeds are those of configs/reproduce/malicious.toml; `scripts/reproduce malicious` adds what each
defense costs in accuracy. Of fishing, which rebuilds few images by design, the figures are of the images that it found.
"""

import argparse
import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from bench_malicious import Row, captured, judged

import adversary
from adversary import Guess
from fl_app.attacking.session import task_spec
from fl_app.sweeps.expand import make_plan
from fl_app.sweeps.file import read_sweep
from fl_app.sweeps.plan import Cell

FILE = Path(__file__).resolve().parents[1] / "configs" / "reproduce" / "malicious.toml"


def cell_of(cell: Cell) -> str:
    """The share above 30 dB and the mean PSNR of all images of a cell, or of those that were found."""
    experiment, (unit,) = cell.attacked.experiment, cell.attacks
    assert unit.attacking is not None
    with tempfile.TemporaryDirectory() as folder:
        row = Row({}, grants=unit.attacking.grants, rounds=experiment.rounds)
        seen = captured(row, experiment, Path(folder))
        guess = adversary.build(unit.attacking.attack)(seen, task_spec(experiment).build(), experiment.seed)
    assert isinstance(guess, Guess)
    shares, quality = [], []
    for place, one in enumerate(seen):
        if one.server_round == 1:
            scores = judged(guess, place, one, experiment)
            number = round((1 - guess.loss[place].item()) * one.num_examples)
            kept = scores.order < number if "fishing" in experiment.server else torch.ones_like(scores.order, dtype=torch.bool)
            shares.append(scores.values["above_30db"][kept])
            quality.append(scores.values["psnr"][kept])
    found = torch.cat(quality)
    return f"{100 * torch.cat(shares).mean():.0f} %, {found.mean():.1f} dB" if len(found) else "none found"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default="", help="crafts whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        plan = make_plan(read_sweep(FILE, "cpu")[0], Path(folder) / "plan", FILE.name, "")
    table: dict[tuple[str, str], dict[str, str]] = {}
    for cell in plan.cells:
        name = str(cell.varied["targets"])
        if options.targets in name:
            row = table.setdefault((str(cell.varied["model"]), str(cell.varied["defense"])), {})
            row[name] = cell_of(cell)
            print(cell.name, row[name], flush=True)
    crafts = list(dict.fromkeys(name for row in table.values() for name in row))
    shown = ([f"`{one}`" for one in key] + [row.get(name, "-") for name in crafts] for key, row in table.items())
    lines(["model", "defense", *crafts], shown)


def lines(heads: list[str], rows: Iterable[list[str]]) -> None:
    """A table as Markdown."""
    print(*("| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)), sep="\n")


if __name__ == "__main__":
    main()
