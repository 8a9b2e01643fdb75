"""What the reproduction scripts share: cells that are run once and kept, attackers who know the defense or not, the report.

A cell is one defense with one seed: a run for the accuracy, and runs whose first round is attacked. What is finished stays
in the folder of the runs, so the same command goes on where it was broken off.
"""

import argparse
import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

# Threads that spin while they wait slow down whatever shares the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
from report import spoken

import adversary
from adversary.adaptive import informed
from adversary.matching import GradientMatching
from fl_app import data, engines
from fl_app.attacking.session import Session, folder_name
from fl_app.attacking.worker import InlineWorker
from fl_app.core import spec
from fl_app.core.local import Step
from fl_app.data.base import DataError
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import assets_of, on_device
from fl_app.experiment.config import Experiment
from fl_app.experiment.evaluators import JUDGING, ensure
from fl_app.experiment.runs import experiment_of
from fl_app.scoring.attacks import Scoring
from fl_app.store.files import write_atomic
from fl_app.store.runs import RunDir

Settings = dict[str, Any]
Rows = list[dict[str, Any] | None]
"""One target each: its metrics, the attack's own loss and the gap; None where the attack failed."""


class Attacker(NamedTuple):
    """An attack by the name that the tables give it."""

    name: str
    attack: str
    grants: tuple[str, ...] = ()


class Victims(NamedTuple):
    """A run whose first round is attacked; the settings are those of an Experiment."""

    name: str
    settings: Settings
    attackers: tuple[Attacker, ...]


class Cell(NamedTuple):
    """One defense with one seed."""

    name: str
    seed: int
    training: Settings | None
    victims: tuple[Victims, ...]
    judged: bool = False
    """Whether a network that no client has used says how much of a guess is noise."""
    floors: bool = False
    """Whether to score blind guesses beside those of the attackers."""


class Rates(NamedTuple):
    """Seconds on one idle core, measured on LeNet: an example's gradient by defense, an image's iteration and its score."""

    gradient: Mapping[str, float]
    iteration: float
    score: float = 0.07


CLIENTS_NETWORK = "that-of-the-clients"
"""Stands for the file of the clients' evaluation network, which may not be trained yet when cells are made."""


def attackers_of(name: str, attack: str, defense: str, examples: int = 1) -> list[Attacker]:
    """The naive attacker of batches of so many examples, and each informed one if knowing the defense changes anything."""
    found = [Attacker(f"{name}, naive", attack)]
    for one in informed(attack, defense, examples=examples, evaluator=CLIENTS_NETWORK):
        if one.attack is not None:
            found.append(Attacker(f"{name}, informed" + (f": {one.name}" if one.name else ""), one.attack, one.grants))
    return found


def train(experiment: Experiment) -> RunDir:
    """Run an experiment, or go on with it, unless it is finished; other settings in its folder are refused."""
    path = Path(experiment.run_dir)
    if not (path / "experiment.toml").exists():
        return engines.run(experiment, "inline", Watcher())
    run = RunDir.open(path)
    if experiment_of(run) != experiment:
        raise SystemExit(f"{path} holds a run with other settings: name another folder with --runs")
    if (kept := run.load_checkpoint()) and kept.server_round == experiment.rounds:
        return run
    return engines.run(experiment, "inline", Watcher(), resume=True)


def attack(run: RunDir, attacker: Attacker, threads: int, *, judged: bool, floors: bool) -> tuple[Rows, dict[str, Rows]]:
    """(rows of the targets, rows of the blind guesses) of one attacker on all that a run captured."""
    text = attacker.attack
    if CLIENTS_NETWORK in text:
        text = text.replace(CLIENTS_NETWORK, str(ensure(experiment_of(run).dataset)))
    session = Session(run, text, attacker.grants, InlineWorker(), threads=threads)
    keys, assets = session.captured(), assets_of(session.experiment)
    session.work(session.pending(keys), 64, lambda _: None)
    judge = ensure(session.experiment.dataset, training=JUDGING) if judged else None
    scoring = Scoring(assets, session.folder, session.failures(), evaluator=judge, floors=floors)
    scoring.run(keys)
    rows: Rows = []
    for key, row, line in zip(keys, scoring.rows(), scoring.lines, strict=True):
        seen = session.captures.read(session.captures.path_of(*key))
        true = Step(on_device(seen.params, assets.device), assets.model, *assets.batch(key[1], key[0])).gradient()
        far = torch.stack([(true[name].cpu() - value.cpu()).double().square().sum() for name, value in seen.update.items()])
        rows.append(None if row is None else {**row, "loss": line["loss"], "gap": far.sum().sqrt().item()})
    return rows, {f"floor: {name}": list(blind) for name, blind in scoring.floors.items()}


def spent(folder: Path, what: str, seconds: float) -> float:
    """Add seconds to those that were spent on something in a folder; returns all of them, whichever command they were in."""
    path = folder / "seconds.json"
    kept: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept[what] = kept.get(what, 0.0) + seconds
    write_atomic(path, json.dumps(kept))
    return kept[what]


def kept_at(cell: Cell, folder: Path) -> Path:
    """Where what a cell came to is kept."""
    return folder / folder_name(cell_id(cell), ()) / "cell.json"


def run_cell(cell: Cell, folder: Path, threads: int = 1) -> dict[str, Any]:
    """Train, attack and score one cell, or read what it came to before."""
    kept, asked = kept_at(cell, folder), json.loads(json.dumps(cell._asdict()))
    place = kept.parent
    if kept.exists():
        before: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        if before["asked"] != asked:
            raise SystemExit(f"{kept} holds results of other settings: name another folder with --runs")
        return before
    torch.set_num_threads(threads)
    found: dict[str, Any] = {"asked": asked, "name": cell.name, "seed": cell.seed, "accuracy": None, "targets": {}}
    began = time.perf_counter()
    if cell.training is not None:
        settings = {**cell.training, "eval_every": max(1, cell.training["rounds"] // 5)}  # a run goes on from there
        run = train(Experiment(**settings, seed=cell.seed, run_dir=str(place / "training")))
        found["accuracy"] = run.metrics()[-1]["accuracy"]
    found["training_seconds"] = time.perf_counter() - began
    for victims in cell.victims:
        path = str(place / folder_name(victims.name, ()))
        run = train(Experiment(**victims.settings, seed=cell.seed, rounds=1, capture="1", run_dir=path))
        for number, attacker in enumerate(victims.attackers):
            floors = cell.floors and number == 0
            rows, blind = attack(run, attacker, threads, judged=cell.judged, floors=floors)
            found["targets"].setdefault(victims.name, {}).update({attacker.name: rows, **blind})
    found["attack_seconds"] = time.perf_counter() - began - found["training_seconds"]
    write_atomic(kept, json.dumps(found))
    return found


def cell_id(cell: Cell) -> str:
    """What a cell is called while it runs."""
    return f"{cell.name}, seed {cell.seed}"


def cost(cell: Cell, rates: Rates) -> float:
    """About how many seconds a cell takes on one idle core."""
    seconds = 3.0  # data, and evaluations on the test set
    if told := cell.training:
        defense = spec.parse(told["defense"])[0].name
        seconds += told["rounds"] * told["clients"] * told["batch_size"] * rates.gradient.get(defense, rates.gradient["none"])
    for victims in cell.victims:
        images = victims.settings["clients"] * victims.settings["batch_size"]
        for attacker in victims.attackers:
            built = adversary.build(attacker.attack)
            assert isinstance(built, GradientMatching)
            seconds += images * (built.iterations * built.restarts * built.seeds * rates.iteration + rates.score)
    return seconds


def _start() -> None:
    """A worker dies at once at Ctrl-C, without a trace of its own: the command itself says what to do."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)


def run_cells(cells: Sequence[Cell], rates: Rates, options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """(results, what failed and why); prints how far it is and about how long it will take."""
    results = [run_cell(cell, options.runs) for cell in cells if kept_at(cell, options.runs).exists()]
    costs = {cell_id(cell): cost(cell, rates) for cell in cells if not kept_at(cell, options.runs).exists()}
    failed: list[str] = []
    whole, done, workers = math.fsum(costs.values()), 0.0, options.workers
    models = {told["model"] for cell in cells for told in (cell.training, *(one.settings for one in cell.victims)) if told}
    said = f"about {spoken(whole / workers)} on {workers} idle core(s)"
    if models != {"lenet"}:
        said = "how long it takes is not known, only LeNet on a CPU was measured"
    print(f"{len(cells)} cells, {len(results)} done before; {said}", flush=True)
    if options.dry_run:
        print("\n".join(f"  {name}: about {seconds:.0f} s on one core" for name, seconds in costs.items()))
        raise SystemExit(0)
    for name in sorted({victims.settings["dataset"] for cell in cells for victims in cell.victims}):
        try:  # here and now, so that workers need not download or train the same thing
            data.load(name)
        except DataError as error:
            raise SystemExit(f"the data set {name} cannot be had: {error}") from None
        if any(cell.judged for cell in cells):
            print("two evaluation networks are trained if they are not there, about a minute each", flush=True)
            ensure(name), ensure(name, training=JUDGING)
    began = time.perf_counter()
    work = partial(run_cell, folder=options.runs, threads=1 if workers > 1 else os.cpu_count() or 1)
    # Spawned, so that no worker inherits threads that another one waits on.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_start)
    futures: dict[Future[dict[str, Any]], Cell] = {pool.submit(work, cell): cell for cell in cells if cell_id(cell) in costs}
    try:
        for number, future in enumerate(as_completed(futures), 1):
            name = cell_id(futures[future])
            try:
                results.append(future.result())
                said = f"accuracy {results[-1]['accuracy']}"
            except (KeyboardInterrupt, BrokenProcessPool):
                raise
            except (Exception, SystemExit) as error:  # one cell does not stop the rest; the report names it
                failed.append(f"{name}: {type(error).__name__}: {error}")
                said = f"FAILED: {error}"
            done += costs[name]
            left = (whole - done) * (time.perf_counter() - began) / done
            print(f"{number}/{len(costs)} {name}: {said}; about {spoken(left)} left", flush=True)
        pool.shutdown()
    except (KeyboardInterrupt, BrokenProcessPool) as error:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        why = "broken off" if isinstance(error, KeyboardInterrupt) else "a worker died (out of memory?)"
        raise SystemExit(f"{why}; the same command goes on from here") from None
    if not results:
        raise SystemExit("nothing was finished:\n" + "\n".join(failed))
    order = [(cell.name, cell.seed) for cell in cells]
    return sorted(results, key=lambda one: order.index((one["name"], one["seed"]))), failed
