#!/usr/bin/env python
"""Rounds per second of bare PyTorch loops, of the inline engine, our Ray engine and Flower's simulation, on the same work.

    .venv/bin/python scripts/bench_rounds.py                      # three models, every engine
    .venv/bin/python scripts/bench_rounds.py --only lenet5        # one of them
    .venv/bin/python scripts/bench_rounds.py --only lenet5 --quick    # without Ray

All do the same gradients in the same order. They take turns, ratios are taken within a turn (against the faster of two bare
loops: one thread, and one per core), and the final weights are compared.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from fl_app import engines
from fl_app.core.local import Tensors
from fl_app.core.machine import cores
from fl_app.engines import serving
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import assets_of, use_threads
from fl_app.experiment.config import Experiment


class Clock(Watcher):
    """Times the rounds between the first and the last one, where evaluation and start-up are left out."""

    def __init__(self) -> None:
        self.times: dict[int, float] = {}

    def on_round(self, line: dict[str, Any]) -> None:
        """Note the time."""
        self.times[line["round"]] = time.perf_counter()

    def rate(self, warm: int) -> float:
        """Rounds per second after `warm` rounds."""
        last = max(self.times) - 1
        return (last - warm) / (self.times[last] - self.times[warm])


def bare_loop(experiment: Experiment, warm: int) -> tuple[float, Tensors]:
    """What a person would write by hand without any framework: (rounds per second, final weights)."""
    assets = assets_of(experiment)
    use_threads(experiment.threads)
    model = assets.model
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.05, momentum=0.9)
    times = []
    for server_round in range(1, experiment.rounds + 1):
        mean = [torch.zeros_like(p) for p in params]
        for client in range(experiment.clients):
            x, y = assets.batch(client, server_round)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            for total, p in zip(mean, params, strict=True):
                total.add_(p.grad, alpha=1 / experiment.clients)
        for total, p in zip(mean, params, strict=True):
            p.grad = total
        optimizer.step()
        times.append(time.perf_counter())
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(before[name])
    return (len(times) - 1 - warm) / (times[-2] - times[warm - 1]), weights


def engine_rate(experiment: Experiment, engine: str, warm: int, workers: int = 0) -> tuple[float, Tensors]:
    """(rounds per second, final weights) of an engine; Flower's polls as it ships."""
    clock = Clock()
    ours = serving.PULL_SECONDS
    serving.PULL_SECONDS = 0.1
    with tempfile.TemporaryDirectory() as folder:
        run = engines.run(experiment.changed(run_dir=str(Path(folder) / "run")), engine, clock, workers=workers)
        checkpoint = run.load_checkpoint()
    serving.PULL_SECONDS = ours
    assert checkpoint is not None
    return clock.rate(warm), checkpoint.weights


def difference(a: Tensors, b: Tensors) -> float:
    """The largest difference between two sets of weights."""
    return max((a[name] - b[name]).abs().max().item() for name in a)


class Work(NamedTuple):
    """What is measured."""

    title: str
    experiment: Experiment
    warm: int
    ray_rounds: int


WORK = {
    "lenet": Work("LeNet, MNIST, 4 clients, batch 8", Experiment(model="lenet", clients=4, batch_size=8, rounds=300), 20, 120),
    "lenet5": Work(
        "LeNet-5, CIFAR-10, 8 clients, batch 32",
        Experiment(dataset="cifar10", model="lenet5", clients=8, batch_size=32, rounds=100),
        10,
        60,
    ),
    "resnet18": Work(
        "ResNet-18, CIFAR-10, 4 clients, batch 16",
        Experiment(dataset="cifar10", model="resnet18", clients=4, batch_size=16, rounds=8, split="96/2/2"),
        2,
        8,
    ),
}


def compare(work: Work, repeats: int, *, quick: bool) -> None:
    """Measure and print one table."""
    experiment = work.experiment.changed(eval_every=10**6)
    many = experiment.changed(threads=cores())
    print(f"\n{work.title}: {experiment.rounds} rounds x {repeats}, median; ratios within a turn", flush=True)
    rates: dict[str, list[float]] = {}
    weights: dict[str, Tensors] = {}

    def note(name: str, measured: tuple[float, Tensors]) -> None:
        rates.setdefault(name, []).append(measured[0])
        weights[name] = measured[1]

    for _ in range(repeats):
        note("bare loop, 1 thread", bare_loop(experiment, work.warm))
        note(f"bare loop, {cores()} threads", bare_loop(many, work.warm))
        note("inline, 1 process", engine_rate(experiment, "inline", work.warm, 1))
        note(f"inline, {cores()} processes", engine_rate(experiment, "inline", work.warm))
    bare = [max(pair) for pair in zip(*list(rates.values())[:2], strict=True)]
    for name, found in rates.items():
        ratio = median(rate / best for rate, best in zip(found, bare, strict=True))
        print(f"  {name:24} {median(found):8.2f} rounds/s   {ratio:.2f} x the faster bare loop")
    one, all_cores = (weights[name] for name in list(weights)[2:])
    print(f"  weights: 1 process against {cores()}: {difference(one, all_cores):.0e}, ", end="")
    print(f"against the bare loop {difference(one, weights['bare loop, 1 thread']):.0e}", flush=True)
    if quick:
        return
    short = experiment.changed(rounds=work.ray_rounds)
    inline, same = engine_rate(short, "inline", work.warm)
    for engine in ("ray", "flower-ray"):
        rate, found_weights = engine_rate(short, engine, work.warm)
        print(f"  {engine:24} {rate:8.2f} rounds/s   {rate / inline:.2f} x inline in the same minute; ", end="")
        print(f"weights as inline: {difference(same, found_weights) == 0}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave Ray out")
    parser.add_argument("--only", choices=WORK, action="append")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for name in options.only or WORK:
        compare(WORK[name], options.repeats, quick=options.quick)


if __name__ == "__main__":
    main()
