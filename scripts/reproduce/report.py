"""The options of the reproduction scripts, and what they write: tables with 95 % intervals, and how it was made."""

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from fl_app.scoring.score import Summary, summarize
from fl_app.store.files import write_atomic

INTERVALS = """\
- Brackets are 95 % intervals (t) over all targets of all seeds; for accuracies over seeds, so there are none with one seed.
- Naive attackers know the model and the protocol. Informed ones also know the defense, see `thorns list defenses`.
- Every defense is attacked on the same examples and initial weights, so changes are paired by target.
- PSNR, SSIM and MSE are of images in [0, 1]. A floor is what a blind guess scores that never saw the update."""


class Scale(Protocol):
    """What every scale says."""

    @property
    def seeds(self) -> int:
        """How many seeds."""

    @property
    def words(self) -> str:
        """What its figures are worth."""


def options_of(
    doc: str | None, name: str, scales: Mapping[str, Scale], argv: Sequence[str] | None = None
) -> argparse.Namespace:
    """The options of a script; wrong ones end it with a sentence that says what is valid."""
    place = name.replace("_", "-")
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=scales, default="smoke", help="smoke: a minute; cpu: 20 minutes; paper: a GPU")
    parser.add_argument("--seeds", type=_count, default=None, help="number of seeds; else what the scale says")
    parser.add_argument("--workers", type=_count, default=None, help="processes; else one a core, or one with a GPU")
    parser.add_argument("--runs", type=Path, default=None, help=f"where runs are kept; runs/reproduce-{place}-SCALE")
    parser.add_argument("--out", type=Path, default=None, help=f"docs/results/{place}-SCALE.md")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be run, and how long it takes")
    options = parser.parse_args(argv)
    options.seeds = options.seeds or scales[options.scale].seeds
    options.device = "auto" if options.scale == "paper" else "cpu"
    gpu = options.device == "auto" and torch.cuda.is_available()
    options.workers = options.workers or (1 if gpu else os.cpu_count() or 1)
    options.runs = (options.runs or Path("runs") / f"reproduce-{place}-{options.scale}").resolve()
    options.out = options.out or Path("docs/results") / f"{place}-{options.scale}.md"
    if options.out.is_dir():
        parser.error(f"--out names a file to write, and {options.out} is a folder")
    options.command = shlex.join(
        [".venv/bin/python", f"scripts/reproduce/{name}.py", *(sys.argv[1:] if argv is None else argv)]
    )
    return options


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return int(text)


def spoken(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def shown(value: Summary, digits: int = 4) -> str:
    """A mean with its interval."""
    if value.mean is None:
        return f"none ({value.failed} failed, {value.unavailable} unavailable)"
    spread = "" if value.low is None else f" [{value.low:.{digits}f}, {value.high:.{digits}f}]"
    return f"{value.mean:.{digits}f}{spread}" + (f" ({value.failed} failed)" if value.failed else "")


class Found:
    """The results of all cells, by defense; seeds are put together."""

    def __init__(self, results: Sequence[Mapping[str, Any]]) -> None:
        self.results = results

    @property
    def names(self) -> list[str]:
        """The defenses, in order."""
        return list(dict.fromkeys(one["name"] for one in self.results))

    def attackers(self, name: str, victims: str) -> list[str]:
        """Who attacked a defense, the blind included."""
        return list(
            dict.fromkeys(who for one in self.results if one["name"] == name for who in one["targets"].get(victims, ()))
        )

    def rows(self, name: str, victims: str, attacker: str) -> list[dict[str, Any] | None]:
        """The targets of all seeds."""
        return [row for one in self.results if one["name"] == name for row in one["targets"].get(victims, {}).get(attacker, ())]

    def metric(self, name: str, victims: str, attacker: str, metric: str) -> Summary:
        """A metric over the targets."""
        return summarize(self.rows(name, victims, attacker), metric)

    def accuracy(self, name: str) -> Summary:
        """The accuracy over seeds."""
        return summarize([{"": one["accuracy"]} for one in self.results if one["name"] == name], "")

    def maintained(self, name: str, base: str) -> Summary:
        """PMM: accuracy with / accuracy without the defense in percent, over seeds."""
        plain = {one["seed"]: one["accuracy"] for one in self.results if one["name"] == base}
        own = [one for one in self.results if one["name"] == name and plain.get(one["seed"])]
        return summarize([{"": 100 * one["accuracy"] / plain[one["seed"]]} for one in own], "")

    def change(self, first: str, second: str, victims: str, attacker: str, metric: str) -> Summary:
        """Second minus first on the same targets."""
        pairs = []
        for one in self.results:
            partner = next((two for two in self.results if (two["name"], two["seed"]) == (second, one["seed"])), None)
            if one["name"] != first or partner is None:
                continue
            both = (side["targets"].get(victims, {}).get(attacker, ()) for side in (one, partner))
            pairs += [
                {metric: None if None in (a[metric], b[metric]) else b[metric] - a[metric]}
                for a, b in zip(*both, strict=False)
                if a and b
            ]
        return summarize(pairs, metric)

    def seconds(self) -> str:
        """What training and attacks took, whenever they ran."""
        training, attacks = (sum(one[f"{what}_seconds"] for one in self.results) for what in ("training", "attack"))
        return f"training {spoken(training)}, attacks and scores {spoken(attacks)}"


def direction(change: Summary) -> str:
    """What an interval of a change says."""
    if change.low is None or change.high is None:
        return "cannot be told from so few targets"
    return "falls" if change.high < 0 else "rises" if change.low > 0 else "does not clearly change"


def table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """A markdown table, with an empty line after it."""
    rows = ["| " + " | ".join(line) + " |" for line in (columns, *lines)]
    return [rows[0], "|" + "---|" * len(columns), *rows[1:], ""]


def made_by(command: str, took: float, how: str = "") -> list[str]:
    """How to make a report again, and what it took here."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    gpu = "yes" if torch.cuda.is_available() else "no"
    said = f"This command took {spoken(took)}{how} on {os.cpu_count()} cores, GPU: {gpu}; load {load}."
    return [f"Command: `{command}`", "", said]


def write(
    title: str,
    about: Sequence[str],
    body: Sequence[str],
    notes: str,
    found: Found,
    failed: Sequence[str],
    took: float,
    options: argparse.Namespace,
) -> str:
    """Write the report with everything that is needed to make it again; returns its text."""
    text = [
        f"# {title}: scale {options.scale}",
        "",
        *about,
        "",
        *made_by(options.command, took, f" with {options.workers} worker(s)"),
        f"{options.seeds} seed(s) from 0 on.",
        f"All cells together, whenever they ran, summed over workers: {found.seconds()}.",
        "",
        *(f"- **Not finished:** {why}" for why in failed),
        *([""] if failed else []),
        *body,
        "## What to know",
        "",
        notes,
        INTERVALS,
        "",
    ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(options.out, "\n".join(text))
    return "\n".join(text)
