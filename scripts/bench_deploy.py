#!/usr/bin/env python
"""Real clients over gRPC: how long a round takes and where its time goes, against Flower's stock behaviour; and a load run.

bench_deploy.py latency --clients 4 --rounds 10     # stock and ours, in turns, on the same machine
bench_deploy.py load --clients 50 --rounds 100      # the same command goes on where it was stopped
"""

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from deploy_trace import TRACES
from flwr.app import Message
from flwr.serverapp import Grid

from fl_app import engines
from fl_app.engines.grpc.grid import AdaptiveGrid
from fl_app.engines.grpc.local import Local, run_local
from fl_app.engines.watcher import Watcher
from fl_app.experiment.config import Experiment
from fl_app.experiment.runs import experiment_of
from fl_app.store.runs import RunDir

NODE_MEGABYTES = 300
"""What one more resident node takes: torch, Flower and MNIST, measured as its private memory."""
PARTS = ["server sends", "until picked up", "process starts", "client works", "reply is read", "server works"]


def timed(grid: Grid, notes: list[dict[str, float]]) -> Grid:
    """A grid that writes down when it sends and when all replies are there."""
    send, push = grid.send_and_receive, grid.push_messages

    def push_messages(messages: Iterable[Message]) -> Iterable[str]:
        sent = push(messages)
        notes[-1]["sent"] = time.time()
        return sent

    def send_and_receive(messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        training = bool(messages) and messages[0].metadata.message_type == "train"
        notes.append({"began": time.time(), "training": training})
        replies = list(send(messages, timeout=timeout))
        notes[-1]["ended"] = time.time()
        return replies

    vars(grid).update(push_messages=push_messages, send_and_receive=send_and_receive)
    return grid


def split(note: dict[str, float], clients: list[dict[str, float]], after: float) -> dict[str, float]:
    """Where the time of one round went: the mean over its clients."""

    def mean(values: Iterable[float]) -> float:
        return statistics.fmean(values)

    fresh = [line["process"] > note["began"] for line in clients]
    at_work = [line["process"] if new else line["began"] for line, new in zip(clients, fresh, strict=True)]
    return {
        "server sends": note["sent"] - note["began"],
        "until picked up": mean(at - note["sent"] for at in at_work),
        "process starts": mean(line["began"] - at for line, at in zip(clients, at_work, strict=True)),
        "client works": mean(line["ended"] - line["began"] for line in clients),
        "reply is read": mean(note["ended"] - line["ended"] for line in clients),
        "server works": after - note["ended"],
    }


def measure(experiment: Experiment, *, stock: bool) -> tuple[list[dict[str, float]], float, RunDir]:
    """(the parts of each round but the first, seconds until the first round, the run)."""
    notes: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ[TRACES] = folder
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        how = Local(stock=stock, client_app="deploy_trace:app")
        began = time.time()
        run = run_local(experiment, Watcher(), how, wrap=lambda grid: timed(grid if stock else AdaptiveGrid(grid), notes))
        traces: dict[int, list[dict[str, float]]] = {}
        for path in Path(folder).glob("*.jsonl"):
            for text in path.read_text().splitlines():
                traces.setdefault(json.loads(text)["round"], []).append(json.loads(text))
    rounds = [note for note in notes if note["training"]]
    following = [note["began"] for note in rounds[1:]]
    # The first round reads the data in a resident node; the last one is followed by the evaluation and a checkpoint.
    parts = [split(rounds[i], traces[i + 1], following[i]) for i in range(1, len(rounds) - 1)]
    return parts, rounds[0]["began"] - began, run


def latency(args: argparse.Namespace) -> None:
    if args.rounds < 3:
        raise SystemExit("--rounds must be at least 3: the first and the last round are not measured")
    torch.set_num_threads(1)
    totals: dict[str, list[float]] = {"stock": [], "ours": []}
    rows: dict[str, list[dict[str, float]]] = {"stock": [], "ours": []}
    starts: dict[str, float] = {}
    weights = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.repeats):
            for name in ("stock", "ours"):
                experiment = settings(args).changed(run_dir=f"{folder}/{name}-{turn}")
                parts, starts[name], run = measure(experiment, stock=name == "stock")
                rows[name] += parts
                totals[name] += [sum(part.values()) for part in parts]
                weights.append(weights_of(run))
                print(f"{name}, turn {turn + 1}: median round {statistics.median(totals[name]):.2f} s", flush=True)
        inline = weights_of(engines.run(settings(args).changed(run_dir=f"{folder}/inline"), "inline", Watcher()))
    print(f"\n{args.model}, MNIST, {args.clients} clients, TLS and node keys; median seconds of a round")
    print(f"{'':18}" + "".join(f"{name:>9}" for name in rows))
    for part in PARTS:
        print(f"{part:18}" + "".join(f"{statistics.median(row[part] for row in rows[name]):9.3f}" for name in rows))
    medians = {name: statistics.median(values) for name, values in totals.items()}
    print(f"{'a round':18}" + "".join(f"{value:9.3f}" for value in medians.values()))
    print(f"{'until round 1':18}" + "".join(f"{starts[name]:9.1f}" for name in rows))
    print(f"ours / stock: {medians['ours'] / medians['stock']:.3f} over {len(totals['ours'])} rounds each")
    print(f"weights as on the inline engine: {all(same(inline, other) for other in weights)}")


class Budget(Watcher):
    """Stops after so many seconds, in a state from which the run goes on; notes the largest memory that was in use."""

    def __init__(self, seconds: float) -> None:
        self.deadline, self.least = time.monotonic() + seconds, available()

    def on_round(self, line: dict[str, Any]) -> None:
        """Say how it goes."""
        self.least = min(self.least, available())
        if line["round"] % 10 == 0:
            print(f"round {line['round']}: {line['seconds']:.0f} s, {line.get('accepted', '-')} replies", flush=True)

    def stop_requested(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.deadline


def available() -> int:
    """Megabytes that this machine has left (Linux)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) // 1024
    raise RuntimeError("this machine does not say how much memory is left")


def load(args: argparse.Namespace) -> None:
    before = available()
    fits = (before - 2000) // NODE_MEGABYTES
    path = Path(args.run_dir).resolve()
    resume = (path / "experiment.toml").exists()
    if resume:
        experiment = experiment_of(RunDir.open(path))
    else:
        if fits < args.clients:
            print(
                f"{before} MB are left, {NODE_MEGABYTES} MB per client, 2 GB for the rest: {fits} clients, not {args.clients}"
            )
        experiment = settings(args).changed(clients=min(args.clients, fits), run_dir=str(path))
    watcher = Budget(args.seconds)
    run = run_local(experiment, watcher, Local(), resume=resume)
    lines = [line for line in run.metrics() if line["round"]]
    if len(lines) < experiment.rounds:
        sys.exit(f"stopped after {len(lines)} of {experiment.rounds} rounds; the same command goes on")
    lost = sum(experiment.clients - line["accepted"] for line in lines)
    gaps = [b["seconds"] - a["seconds"] for a, b in pairwise(lines) if b["seconds"] > a["seconds"]]
    with tempfile.TemporaryDirectory() as folder:
        inline = engines.run(experiment.changed(run_dir=f"{folder}/inline"), "inline", Watcher())
        identical = same(weights_of(inline), weights_of(run))
    print(f"{experiment.clients} SuperNodes, {len(lines)} rounds: {lost} replies lost of {experiment.clients * len(lines)}")
    print(f"median round {statistics.median(gaps):.2f} s, longest {max(gaps):.2f} s; accuracy {lines[-1]['accuracy']:.4f}")
    print(f"memory in use at most: {before - watcher.least} MB; weights as on the inline engine: {identical}")


def settings(args: argparse.Namespace) -> Experiment:
    return Experiment(
        model=args.model, clients=args.clients, rounds=args.rounds, batch_size=args.batch_size, eval_every=args.rounds
    )


def weights_of(run: RunDir) -> dict[str, torch.Tensor]:
    checkpoint = run.load_checkpoint()
    assert checkpoint is not None
    return checkpoint.weights


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, run, clients, rounds in (("latency", latency, 4, 10), ("load", load, 50, 100)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--clients", type=int, default=clients)
        command.add_argument("--rounds", type=int, default=rounds)
        command.add_argument("--model", default="lenet")
        command.add_argument("--batch-size", type=int, default=8)
    commands.choices["latency"].add_argument("--repeats", type=int, default=1, help="turns of stock and ours")
    commands.choices["load"].add_argument("--run-dir", default="runs/load")
    commands.choices["load"].add_argument("--seconds", type=float, default=3600.0, help="stop after these; go on later")
    args = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    args.run(args)


if __name__ == "__main__":
    main()
