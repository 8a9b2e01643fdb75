#!/usr/bin/env python
"""What each defense costs and what it leaks: accuracy, and PSNR / SSIM / LPIPS under naive and informed attackers.

.venv/bin/python scripts/tradeoff.py [--datasets mnist,cifar10] [--seeds 2] [--only prune] [--workers 2] [--dry-run]

Each cell (data set, defense, seed) trains LeNet with the defense on every client, and attacks the first update of 16
clients of one example each. Finished cells are kept in the work folder and not done again; the table is written anew from
all of them at the end.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

DEFENSES = {
    "none": ["none"],
    "gradient_dropout": ["gradient_dropout(p=0.96)", "gradient_dropout(p=0.9)", "gradient_dropout(p=0.6)"],
    "gradient_dropout, matched decoys": ["gradient_dropout(p=0.9, sigma='match')", "gradient_dropout(p=0.6, sigma='match')"],
    "drop_fedsgd": ["drop_fedsgd(p=0.01)", "drop_fedsgd(p=0.05)", "drop_fedsgd(p=0.1)"],
    "dp_gaussian": ["dp_gaussian(scale=0.001)", "dp_gaussian(scale=0.01)", "dp_gaussian(scale=0.1)"],
    "dp_laplace": ["dp_laplace(scale=0.001)", "dp_laplace(scale=0.01)", "dp_laplace(scale=0.1)"],
    "dp_sgd": ["dp_sgd(noise=0.01)", "dp_sgd(noise=0.1)", "dp_sgd(noise=1.0)"],
    "prune": ["prune(ratio=0.5)", "prune(ratio=0.9)", "prune(ratio=0.99)"],
    "prune, memory": ["prune(ratio=0.99, memory=True)"],
    "quantize": ["quantize(bits=8)", "quantize(bits=4)", "quantize(bits=2)"],
    "sign": ["sign", "sign(memory=True)"],
    "mask": ["mask(ratio=0.25)", "mask(ratio=0.5)", "mask(ratio=0.75)"],
    "soteria": ["soteria(ratio=0.2)", "soteria(ratio=0.6)", "soteria(ratio=0.9)"],
    "ppfa": ["ppfa(budget=0.995)", "ppfa(budget=0.97)", "ppfa(budget=0.8)"],
    "ldpm": ["ldpm(noise=0.0005)", "ldpm(noise=0.01)", "ldpm(noise=0.1)"],
}
ATTACKS = {"inverting gradients": "inverting_gradients(iterations=500)", "L-BFGS": "cosine_lbfgs(iterations=600, tv=0.01)"}
TOGETHER = "cosine_lbfgs(iterations=300, tv=0.01)"
"""On several rounds at once, whose iterations cost as many times more."""
TARGETS, ROUNDS_TOGETHER = 16, 4
TRAINING = {"model": "lenet", "optimizer": "adam(lr=0.003)", "clients": 4, "batch_size": 32, "eval_every": 1000}
METRICS = ("psnr", "ssim", "lpips_alex")


def attacked(
    path: Path, dataset: str, defense: str, seed: int, rounds: int, attacks: Iterable[tuple[str, str, tuple[str, ...]]]
) -> dict[str, Any]:
    """Attack clients of one example each; name of the attacker -> rows of its targets and its ledger."""
    from fl_app import engines
    from fl_app.attacking.session import Session
    from fl_app.attacking.worker import InlineWorker
    from fl_app.engines.watcher import Watcher
    from fl_app.experiment.assets import assets_of
    from fl_app.experiment.config import Experiment
    from fl_app.scoring.attacks import Scoring

    experiment = Experiment(
        dataset=dataset,
        model="lenet",
        optimizer="adam(lr=0.003)",
        clients=TARGETS,
        client_examples=1,
        batch_size=1,
        rounds=rounds,
        eval_every=10_000,
        seed=seed,
        defense=defense,
        capture="all",
        run_dir=str(path),
    )
    run = engines.run(experiment, "inline", Watcher())
    found: dict[str, Any] = {}
    for name, text, grants in attacks:
        session = Session(run, text, grants, InlineWorker(), threads=1)  # cells share the cores
        keys = session.captured()
        session.work(session.pending(keys), 64, lambda _: None)
        shown = [key for key in keys if key[0] == 1]
        scoring = Scoring(assets_of(experiment), session.folder, session.failures(), floors=not found)
        scoring.run(shown)
        rows = [{metric: row[metric] for metric in (*METRICS, "label_accuracy")} if row else None for row in scoring.rows()]
        found[name] = {"attack": text, "rows": rows, "granted": list(grants)}
        for floor, blind in scoring.floors.items():
            found[f"floor: {floor}"] = {"rows": [{metric: row[metric] for metric in METRICS} for row in blind]}
    return found


def cell(work: Path, dataset: str, defense: str, seed: int, training_rounds: int) -> dict[str, Any]:
    """One cell: train, attack, score."""
    import torch

    torch.set_num_threads(1)
    from adversary.adaptive import adapt, averages
    from fl_app import engines
    from fl_app.attacking.session import folder_name
    from fl_app.engines.watcher import Watcher
    from fl_app.experiment.config import Experiment

    began = time.monotonic()
    place = work / folder_name(f"{dataset} {defense} {seed}", ())
    training = Experiment(
        dataset=dataset,
        defense=defense,
        seed=seed,
        rounds=training_rounds,
        run_dir=str(place / f"train-{os.getpid()}"),
        **TRAINING,
    )
    last = engines.run(training, "inline", Watcher()).metrics()[-1]
    attacks = [(f"naive {name}", text, ()) for name, text in ATTACKS.items()]
    for name, text in ATTACKS.items():
        informed = adapt(text, defense)
        if informed is not None:
            attacks.append((f"informed {name}", informed, ("defense",)))
    leaks = attacked(place / f"once-{os.getpid()}", dataset, defense, seed, 1, attacks)
    if averages(defense):
        together = adapt(TOGETHER, defense, repeats=True, rounds=ROUNDS_TOGETHER)
        assert together is not None
        again = [(f"informed, {ROUNDS_TOGETHER} rounds", together, ("defense", "repeats"))]
        leaks |= {
            name: value
            for name, value in attacked(place / f"often-{os.getpid()}", dataset, defense, seed, ROUNDS_TOGETHER, again).items()
            if not name.startswith("floor")
        }
    return {
        "dataset": dataset,
        "defense": defense,
        "seed": seed,
        "accuracy": last["accuracy"],
        "epsilon": last.get("epsilon"),
        "leaks": leaks,
        "seconds": time.monotonic() - began,
    }


def main() -> None:
    """Run what is open, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default="mnist,cifar10")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=1, help="the attacks' settings were chosen looking at seed 0")
    parser.add_argument("--training-rounds", type=int, default=400)
    parser.add_argument("--only", default="", help="only defenses whose spec contains this")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--work", type=Path, default=Path("runs/tradeoff"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    kept = options.work / "cells.jsonl"
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    have = {(one["dataset"], one["defense"], one["seed"]) for one in done}
    wanted = [
        (dataset, defense, seed)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for dataset in options.datasets.split(",")
        for family in DEFENSES.values()
        for defense in family
        if options.only in defense
    ]
    open_ = [key for key in wanted if key not in have]
    print(f"{len(wanted)} cells, {len(wanted) - len(open_)} done before", flush=True)
    if options.dry_run:
        return
    began = time.monotonic()
    # Spawned, so that no worker inherits threads that another one waits on.
    with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as pool, kept.open("a") as out:
        futures = {pool.submit(cell, options.work, *key, options.training_rounds): key for key in open_}
        for number, future in enumerate(as_completed(futures), 1):
            name = " ".join(map(str, futures[future]))
            try:
                result = future.result()
            except Exception as error:  # one failed cell does not stop the rest; it stays open and is tried again next time
                print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
                continue
            done.append(result)
            out.write(json.dumps(result) + "\n")
            out.flush()
            left = (time.monotonic() - began) / number * (len(open_) - number)
            print(
                f"{number}/{len(open_)} {name}: accuracy {result['accuracy']:.3f}, about {left / 60:.0f} min left", flush=True
            )
    from tradeoff_table import write

    for dataset in options.datasets.split(","):
        write(options.out, dataset, done, DEFENSES, options)


if __name__ == "__main__":
    main()
