#!/usr/bin/env python
"""Rounds per second of a bare PyTorch loop, of the inline engine and of Flower's Ray simulation, on the same work.

    .venv/bin/python scripts/bench_rounds.py            # LeNet, MNIST, 4 clients, batch 8; then ResNet-18, CIFAR-10, batch 16
    .venv/bin/python scripts/bench_rounds.py --quick    # without Ray

The three do the same gradients in the same order: bare loop and inline engine take turns, and their final weights are compared.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional as F

from fl_app import engines
from fl_app.core.local import Tensors
from fl_app.engines import serving
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import assets_of, use_threads
from fl_app.experiment.config import Experiment

THREADS = os.cpu_count() or 1  # what torch takes by itself, for the bare loop and for the engines alike


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


def engine_rate(experiment: Experiment, engine: str, warm: int, stock: bool = False) -> tuple[float, Tensors]:
    """(rounds per second, final weights) of an engine; `stock` leaves Flower's polling interval as it ships."""
    clock = Clock()
    ours = serving.PULL_SECONDS
    serving.PULL_SECONDS = 0.1 if stock else ours
    with tempfile.TemporaryDirectory() as folder:
        run = engines.run(experiment.changed(run_dir=str(Path(folder) / "run")), engine, clock)
        checkpoint = run.load_checkpoint()
    serving.PULL_SECONDS = ours
    assert checkpoint is not None
    return clock.rate(warm), checkpoint.weights


def difference(a: Tensors, b: Tensors) -> float:
    """The largest difference between two sets of weights."""
    return max((a[name] - b[name]).abs().max().item() for name in a)


def compare(title: str, experiment: Experiment, repeats: int, warm: int, ray: tuple[int, int] | None) -> None:
    """Measure and print one table; `ray` = (rounds, warm-up rounds) or None to leave Ray out."""
    print(f"\n{title}: {experiment.rounds} rounds x {repeats}, median; ratios from one run", flush=True)
    bare, inline = [], []
    for _ in range(repeats):
        rate, expected = bare_loop(experiment, warm)
        bare.append(rate)
        rate, weights = engine_rate(experiment, "inline", warm)
        inline.append(rate)
    ratio = median(i / b for i, b in zip(inline, bare, strict=True))
    print(f"  bare PyTorch loop        {median(bare):8.2f} rounds/s")
    print(f"  inline engine            {median(inline):8.2f} rounds/s   {ratio:.2f} x bare (a round costs {1 / ratio:.2f} x)")
    print(f"  largest difference of the final weights, bare against inline: {difference(expected, weights):.1e}", flush=True)
    if ray:
        short = experiment.changed(rounds=ray[0])
        _, same = engine_rate(short, "inline", ray[1])
        for name, stock in (("Ray, Flower's polling", True), ("Ray, our polling", False)):
            rate, weights = engine_rate(short, "ray", ray[1], stock)
            print(f"  {name:24} {rate:8.2f} rounds/s   inline is {median(inline) / rate:.1f} x as fast", flush=True)
            print(f"    final weights bit-identical to inline: {difference(same, weights) == 0}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave Ray out")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    small = Experiment(model="lenet", clients=4, batch_size=8, rounds=400, eval_every=10**6, threads=THREADS)
    compare("LeNet, MNIST, 4 clients, batch 8", small, options.repeats, 20, None if options.quick else (60, 10))
    large = Experiment(
        dataset="cifar10", model="resnet18", clients=4, batch_size=16, rounds=8, eval_every=10**6, threads=THREADS
    )
    compare("ResNet-18, CIFAR-10, 4 clients, batch 16", large, min(3, options.repeats), 2, None)


if __name__ == "__main__":
    main()
