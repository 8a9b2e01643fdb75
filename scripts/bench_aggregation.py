#!/usr/bin/env python
"""What hiding updates costs beside defending them: a round of FedSGD in the clear, by SecAgg+, encrypted, and with defenses.

    .venv/bin/python scripts/bench_aggregation.py                                        # LeNet-5, MNIST, 10 clients, batch 32
    .venv/bin/python scripts/bench_aggregation.py --model linear
    .venv/bin/python scripts/bench_aggregation.py --model resnet10 --dataset cifar10 --clients 3 --batch 16 --rounds 1

All ways take the same rounds in turns in one process, on the inline engine, so that ratios are of one run. Times are seconds of
the processor (medians over rounds): they do not depend on who else uses the machine. "Forward/backward" is the plain gradient,
"privacy" what the way takes beyond a plain round, at each client and at the server. Bytes are counted, of one client in a
round; their time is for a link of 100 Mbit/s. The last column is how far the weights are from those of the plain rounds.
"""

import argparse
import logging
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message

from fl_app import client_app
from fl_app.core.local import Tensors
from fl_app.core.wire import to_record, to_tensors
from fl_app.engines.inline import InlineGrid
from fl_app.engines.metered import MeteredGrid
from fl_app.engines.protocols import hidden
from fl_app.engines.serving import build_strategy
from fl_app.experiment.assets import assets_of
from fl_app.experiment.config import Experiment, from_run_config
from fl_app.experiment.runs import create_run
from fl_app.models import parameters_of

WAYS = {
    "plain": {},
    "SecAgg+": {"visibility": "secagg"},
    "encrypted": {"visibility": "encrypted"},
    "drop_fedsgd": {"defense": "drop_fedsgd"},
    "refiner": {"defense": "refiner"},
}
BITS_A_SECOND = 100e6


class TimedGrid(InlineGrid):
    """Counts the processor's seconds in the clients."""

    clients_seconds = 0.0

    def _answer(self, message: Message) -> Message:
        began = time.process_time()
        reply = super()._answer(message)
        self.clients_seconds += time.process_time() - began
        if reply.has_error():
            raise RuntimeError(reply.error.reason)
        return reply


class Way:
    """One way to run the rounds."""

    def __init__(self, experiment: Experiment) -> None:
        create_run(Path(experiment.run_dir), experiment)  # where clients of a simulation keep their key
        self.clients = experiment.clients
        self.timed = TimedGrid(client_app.app, experiment.clients, experiment.run_config())
        self.grid = MeteredGrid(self.timed)
        self.strategy = hidden(build_strategy(experiment), experiment)
        self.arrays: ArrayRecord = to_record(parameters_of(assets_of(experiment).model))
        self.rounds: list[tuple[float, float, float]] = []
        self.carried: dict[str, float] = {}

    def round(self, number: int) -> None:
        """Take one round: (seconds of gradients, of all that clients did, of the server) by client, by client, in all."""
        self.timed.clients_seconds, gradients.seconds, began = 0.0, 0.0, time.process_time()
        requests = self.strategy.configure_train(number, self.arrays, ConfigRecord(), self.grid)
        arrays, _ = self.strategy.aggregate_train(number, self.grid.send_and_receive(requests))
        server = time.process_time() - began - self.timed.clients_seconds
        assert arrays is not None
        self.arrays, self.carried = arrays, self.grid.spent()
        self.rounds.append((gradients.seconds / self.clients, self.timed.clients_seconds / self.clients, server))

    def medians(self, warm: int) -> tuple[float, ...]:
        """Of what `round` noted, without the first rounds."""
        return tuple(median(column) for column in zip(*self.rounds[warm:], strict=True))


class Gradients:
    """Times the client's own update, whichever defense it has."""

    def __init__(self) -> None:
        self.seconds, self.take = 0.0, client_app.defended_update

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensors, int]:
        """As the function that it stands for."""
        began = time.process_time()
        found = self.take(*args, **kwargs)
        self.seconds += time.process_time() - began
        return found


gradients = Gradients()


def flat(tensors: Tensors) -> torch.Tensor:
    return torch.cat([value.reshape(-1).double() for value in tensors.values()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5, help="that count; one before them warms up")
    options = parser.parse_args()
    client_app.defended_update = gradients
    logging.getLogger("flwr").setLevel(logging.ERROR)
    shared = {"model": options.model, "dataset": options.dataset, "clients": options.clients, "batch-size": options.batch}
    with tempfile.TemporaryDirectory(prefix="thorns-") as folder:
        ways = {
            name: Way(from_run_config({**shared, **settings, "run-dir": str(Path(folder) / name)}))
            for name, settings in WAYS.items()
        }
        for number in range(1, options.rounds + 2):
            for way in ways.values():
                way.round(number)
    weights = {name: flat(to_tensors(way.arrays)) for name, way in ways.items()}
    print(
        f"{options.model}, {options.dataset}, {len(weights['plain']):,} parameters, {options.clients} clients, batch "
        f"{options.batch}; median of {options.rounds} rounds; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n"
    )
    print("| | forward/ backward, ms | privacy: client, ms | privacy: server, ms | from a client, kB | to a client, kB", end="")
    print(" | link, ms | a client's round, x plain | weights off by |\n|---|---|---|---|---|---|---|---|---|")
    gradient, client, server = ways["plain"].medians(1)
    base = 0.0
    for name, way in ways.items():
        _, mine, served = way.medians(1)
        up, down = (way.carried[key] / options.clients for key in ("received_bytes", "sent_bytes"))
        link = 8 * (up + down) / BITS_A_SECOND
        whole = gradient + (mine - client) + (served - server) + link
        base = base or whole
        off = float((weights[name] - weights["plain"]).norm() / weights["plain"].norm())
        times = (gradient, mine - client, served - server)
        print(
            f"| {name} | {' | '.join(f'{1e3 * value:.1f}' for value in times)} | {up / 1e3:,.0f} | {down / 1e3:,.0f} | ", end=""
        )
        print(f"{1e3 * link:.1f} | {whole / base:.2f} | {off:.0e} |", flush=True)


if __name__ == "__main__":
    main()
