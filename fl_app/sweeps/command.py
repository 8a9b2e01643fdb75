"""A sweep from its file or its command line to its results: plan, check, do, show."""

import os
import shlex
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

import adversary
from fl_app.analysis.results import read_study
from fl_app.cluster.connect import on_cluster
from fl_app.core import plugins
from fl_app.core.ending import exit_code, terminable
from fl_app.core.machine import ray_address
from fl_app.data.texts import TEXTS
from fl_app.experiment.toml import ConfigError, parse_assignment
from fl_app.report import write_report
from fl_app.store.files import RunError
from fl_app.store.locks import LOCK, alone
from fl_app.sweeps.check import check, prepare
from fl_app.sweeps.drive import work
from fl_app.sweeps.estimate import Estimator, learned, try_out
from fl_app.sweeps.expand import make_plan
from fl_app.sweeps.file import Sweep, read_sweep, sweep_of
from fl_app.sweeps.live import say, spoken
from fl_app.sweeps.parallel import make_workers, usual_number
from fl_app.sweeps.plan import Plan, Unit
from fl_app.sweeps.table import LEGEND, table_of

QUICK: dict[str, Any] = {
    "dataset": "mnist",
    "model": "lenet",
    "clients": 4,
    "batch-size": 32,
    "optimizer": "adam(lr=0.003)",
    "rounds": 300,
    "eval-every": 100,
}
QUICK_TEXT: dict[str, Any] = {
    "model": "bert(dim=64, depth=2, freeze=False)",
    "rounds": 60,
    "eval-every": 20,
}
QUICK_ATTACKS = ("closed_form", "dager")
"""On text."""
QUICK_TARGETS: dict[str, Any] = {"client-examples": 1, "batch-size": 1, "rounds": 1, "capture": "1"}
OPTIONS = {"defense": "the defenses as arguments", "attack": "--attack", "seed": "--seeds", "grant": "--grant"}


def sweep(console: Console, path: Path, out: Path | None, workers: int, *, scale: str = "", dry_run: bool) -> None:
    """Do a sweep file at one of its scales, or go on with a sweep folder."""
    if path.is_dir():
        path, out = path / "sweep.toml", out or path
        if not path.exists():
            raise RunError(f"{path.parent} is not the folder of a sweep, as it has no sweep.toml: name one, or a sweep file")
    given, text = read_sweep(path, scale)
    folder = out or Path("runs") / f"{path.stem}{scale and f'-{scale}'}"
    _sweep(console, given, text, folder, str(path), workers, dry_run=dry_run)


def compare(
    console: Console,
    defenses: list[str],
    settings: list[str],
    attacks: list[str],
    *,
    targets: int,
    seeds: int,
    grant: str,
    lpips: bool,
    metrics: list[str],
    out: Path | None,
    workers: int,
    dry_run: bool,
) -> None:
    """Do the sweep that a command line describes."""
    changes = dict(parse_assignment(text) for text in settings)
    for key in OPTIONS.keys() & changes.keys():
        raise ConfigError(f"-c {key}=...: compare takes {OPTIONS[key]} instead")
    usual, text = dict(QUICK), str(changes.get("dataset", "")).partition("(")[0] in TEXTS
    if text:
        usual |= QUICK_TEXT
    given = {
        "title": f"{', '.join(defenses)} on {changes.get('dataset', QUICK['dataset'])}",
        "seeds": list(range(seeds)),
        "attacks": attacks or (list(QUICK_ATTACKS) if text else [adversary.DEFAULT]),
        "grant": grant,
        "lpips": lpips and not text,
        "metrics": metrics,
        "run": {**usual, **changes, "defense": defenses},
        "targets": {"clients": targets, **QUICK_TARGETS},
    }
    made = sweep_of(given, "compare")
    folder = out or Path("runs") / f"compare-{datetime.now():%Y%m%d-%H%M%S}"
    _sweep(console, made, made.toml(), folder, "compare", workers, dry_run=dry_run)


def _sweep(console: Console, given: Sweep, text: str, folder: Path, source: str, number: int, *, dry_run: bool) -> None:
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is not a folder: choose another with --out")
    plan = make_plan(given, folder, source, command)
    notes = check(plan, source, fetch=not dry_run)
    open_ = [unit for unit in plan.units if unit.seconds is None]
    estimator = learned(plan.units)
    if dry_run:
        if not notes:
            with console.status("timing a few rounds and iterations ..."):
                try_out(open_, estimator)
        _say_plan(console, plan, open_, estimator, number or usual_number(open_), [*plan.notes, *notes])
        return
    busy = f"another sweep is at work in {plan.folder}: wait for it, or choose another folder with --out"
    try:
        with terminable(), alone(plan.folder / LOCK, busy):
            workers, number = make_workers(number, open_)
            with closing(workers):
                plan.save(text)
                _say_plan(console, plan, open_, estimator, number, plan.notes, cells=False)
                if open_:
                    prepare(plan, lambda words: say(console, words))
                failed = work(console, plan, workers, number, estimator)
            _say_results(console, plan, failed)
    except KeyboardInterrupt as end:
        again = shlex.join(plugins.again(["thorns", "sweep", os.path.relpath(plan.folder)]))
        say(console, f"Stopped. What is finished is kept; go on with: {again}")
        raise typer.Exit(exit_code(end)) from None


def _say_plan(
    console: Console, plan: Plan, open_: list[Unit], estimator: Estimator, number: int, notes: list[str], *, cells: bool = True
) -> None:
    runs = sum(unit.attacking is None for unit in open_)
    guesses = {unit.name: estimator.guess(unit) for unit in open_}
    known = [seconds for seconds in guesses.values() if seconds is not None]
    unknown = len(guesses) - len(known)
    if not known and unknown:
        time = "how long it takes is unknown"
    else:
        time = f"about {spoken(sum(known) / number)}" + (f" and {unknown} of unknown length" if unknown else "")
    where = "in this process" if number == 1 else f"on {number} workers"
    if on_cluster():
        where = f"on {number} workers of the cluster {ray_address()}"
    say(console, f"{plan.sweep.title}: {len(plan.cells)} cells")
    say(console, f"to do: {runs} runs and {len(open_) - runs} attacks {where}; {time}" if open_ else "all of it is finished")
    for words in notes:
        say(console, f"note: {words}")
    for cell in plan.cells if cells else []:
        left = [guesses[unit.name] for unit in cell.units if unit.name in guesses]
        state = "finished" if not left else f"about {spoken(sum(one for one in left if one))}" if all(left) else "unknown"
        say(console, f"  {cell.name}: {state}")


def _say_results(console: Console, plan: Plan, failed: int) -> None:
    study = read_study(plan.folder)
    console.print(table_of(study.cells))
    say(console, LEGEND)
    for problem in study.problems:
        say(console, f"problem: {problem}")
    for cell in study.cells:
        if cell.failed:
            say(console, f"failed: {cell.name}: {cell.failed}")
    report = _report(console, plan.folder)
    say(console, f"Results: {os.path.relpath(report or plan.folder)}")
    if failed:
        raise typer.Exit(1)


def _report(console: Console, folder: Path) -> Path | None:
    """The report, if it can be written; results are not lost with it."""
    try:
        with console.status("writing the report ..."):
            return write_report(folder)
    except Exception as error:  # whatever it is, the results are there
        say(console, f"the report could not be written ({type(error).__name__}: {error})")
        return None
