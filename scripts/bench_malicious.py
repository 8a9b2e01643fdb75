#!/usr/bin/env python
"""What malicious servers read off the updates of clients, by seeds: images above 30 dB, with intervals over targets.

    .venv/bin/python scripts/bench_malicious.py                      # all rows
    .venv/bin/python scripts/bench_malicious.py --only loki --seeds 1

Clients hold training images; the server makes its cuts from test images, which nobody holds. What settings there are was
chosen with seeds from 100 on. Intervals are those of Student's t over targets, 95 %.
"""

import argparse
import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.clientapp import ClientApp

import adversary
from adversary import Guess
from fl_app import client_app
from fl_app.attacking.session import task_spec
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation
from fl_app.core.wire import to_record
from fl_app.engines.inline import InlineGrid
from fl_app.engines.serving import build_strategy, malicious
from fl_app.experiment.assets import assets_of
from fl_app.experiment.config import Experiment, from_run_config
from fl_app.experiment.grants import knowledge_of, server_knowledge
from fl_app.experiment.toml import Value
from fl_app.experiment.truth import clients_behind, true_aggregate
from fl_app.models import parameters_of
from fl_app.scoring.base import Tools
from fl_app.scoring.metrics import METRICS
from fl_app.scoring.score import Scores, score, summarize
from fl_app.store.captures import Captures
from strategies import Curious
from strategies.secagg import SecAgg, secagg_mod

SHOWN = {name: METRICS[name] for name in ("psnr", "ssim", "above_30db")}
FEDAVG: dict[str, Value] = {
    "update": "delta",
    "local-steps": 8,
    "batch-size": 8,
    "local-lr": 0.01,
    "optimizer": "sgd(lr=1.0)",
    "visibility": "aggregate",
}


@dataclass(frozen=True)
class Row:
    """A server, its clients, and the attack on what they send."""

    settings: dict[str, Value]
    attack: str = ""
    grants: tuple[str, ...] = ()
    rounds: int = 1
    clip: float = 0.0
    """Of SecAgg+, if the updates go through it."""


def imprint(dataset: str, views: int = 2) -> Row:
    """Robbing the Fed with 1,000 bins at a batch of 64."""
    return Row({"dataset": dataset, "server": f"imprint(bins=1000, views={views})", "clients": 4, "batch-size": 64})


def traps(dataset: str) -> Row:
    """Trap weights at a batch of 32."""
    model = "mlp(hidden=[2000, 100])"
    return Row({"dataset": dataset, "server": "traps", "model": model, "clients": 4, "batch-size": 32})


def fishing(dataset: str) -> Row:
    """Nine cuts through a batch of 64, the same in all rounds."""
    settings: dict[str, Value] = {"dataset": dataset, "model": "lenet", "server": "fishing", "clients": 3, "batch-size": 64}
    return Row(
        settings | {"client-examples": 64},
        "fishing(attack=cosine_lbfgs(iterations=300, labels=given))",
        ("repeats",),
        rounds=9,
    )


def loki(dataset: str, clip: float = 0.0, gain: float = 0.01) -> Row:
    """Ten clients with 64 images each, in eight local steps."""
    return Row({"dataset": dataset, "server": f"loki(bins=512, gain={gain})", "clients": 10, **FEDAVG}, clip=clip)


ROWS = {
    "imprint, 64 images, cifar10": imprint("cifar10"),
    "imprint, 64 images, mnist": imprint("mnist"),
    "imprint with one view, 64 images, cifar10": imprint("cifar10", views=1),
    "imprint with one view, 64 images, mnist": imprint("mnist", views=1),
    "traps, 32 images, cifar10": traps("cifar10"),
    "traps, 32 images, mnist": traps("mnist"),
    "fishing, 64 images, cifar10": fishing("cifar10"),
    "fishing, 64 images, mnist": fishing("mnist"),
    "loki, 10 x 64 images, 8 steps, cifar10": loki("cifar10"),
    "loki, 10 x 64 images, 8 steps, mnist": loki("mnist"),
    "loki through SecAgg+ at gain 0.01, 10 x 64 images, 8 steps, mnist": loki("mnist", clip=8.0),
    "loki through SecAgg+ at gain 0.1, 10 x 64 images, 8 steps, mnist": loki("mnist", clip=8.0, gain=0.1),
    "loki through SecAgg+ at gain 0.1, 10 x 64 images, 8 steps, cifar10": loki("cifar10", clip=8.0, gain=0.1),
}


def captured(row: Row, experiment: Experiment, folder: Path) -> list[Observation]:
    """What the server keeps of some rounds."""
    assets, seen = assets_of(experiment), Captures(folder)
    strategy = Curious(
        malicious(build_strategy(experiment), assets),
        seen,
        experiment.rule,
        visibility=experiment.seen,
        knowledge=server_knowledge(experiment),
    )
    app = client_app.app
    if row.clip:
        app = ClientApp(mods=[secagg_mod])
        app.train()(client_app.train)
        app.query("identify")(client_app.identify)
    grid = InlineGrid(app, experiment.clients, experiment.run_config())
    wrapped = SecAgg(strategy, max_examples=experiment.rule.num_examples, clip=row.clip) if row.clip else strategy
    initial: Tensors = parameters_of(assets.model)
    wrapped.start(grid, to_record(initial), num_rounds=row.rounds)
    found, damaged = seen.read_all()
    assert not damaged, damaged
    known = [knowledge_of(assets, row.grants, (one.server_round, one.client), one.params) for one in found]
    for one, told in zip(found, known, strict=True):
        object.__setattr__(one, "knowledge", told)
    return found


def judged(guess: Guess, place: int, seen: Observation, experiment: Experiment) -> Scores:
    """One target against the truth."""
    assets = assets_of(experiment)
    truth = true_aggregate(assets, clients_behind(assets, seen.client, seen.server_round), seen.server_round)
    return score(guess.x[place], guess.y[place], *truth, SHOWN, Tools(lpips=False))


def run(name: str, row: Row, seeds: list[int]) -> None:
    """One row, over seeds."""
    shares, found_in, likeness, quality, worked = [], [], [], [], 0.0
    for seed in seeds:
        settings = {**row.settings, "seed": seed, "capture": f"1-{row.rounds}", "rounds": row.rounds}
        experiment = from_run_config({**Experiment().run_config(), **settings})
        with tempfile.TemporaryDirectory() as folder:
            seen = captured(row, experiment, Path(folder))
            attack, before = adversary.build(row.attack or experiment.craft.readout), time.process_time()
            guess = attack(seen, task_spec(experiment).build(), seed)
            worked += time.process_time() - before
        assert isinstance(guess, Guess)
        for place, one in enumerate(seen):
            if one.server_round > 1:
                continue  # all rounds of a client have the same answer
            scores = judged(guess, place, one, experiment)
            number = round((1 - guess.loss[place].item()) * one.num_examples)
            answered = scores.order < number
            shares.append(scores.values["above_30db"].mean().item())
            found_in.append(float(number))
            if number:
                likeness.append(scores.values["ssim"][answered].mean().item())
                quality.append(scores.values["psnr"][answered].mean().item())
    print(f"{name}: {len(shares)} targets of {seen[0].num_examples} images, seeds {seeds[0]} to {seeds[-1]}")
    print(f"  above 30 dB: {shown(shares, 3)} of all; answered {shown(found_in, 1)}, of these {shown(quality, 1)} dB,", end=" ")
    print(f"SSIM {shown(likeness, 3)}; read-out {worked / len(shares):.1f} s of CPU a target", flush=True)


def shown(values: list[float], digits: int) -> str:
    """A mean with its interval."""
    found = summarize([{"value": value} for value in values], "value")
    if found.mean is None:
        return "-"
    half = "" if found.high is None else f" ± {found.high - found.mean:.{digits}f}"
    return f"{found.mean:.{digits}f}{half}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for name, row in ROWS.items():
        if options.only in name:
            run(name, row, list(range(options.first, options.first + options.seeds)))


if __name__ == "__main__":
    main()
