#!/usr/bin/env python
"""False alarms of the client's guard over whole honest trainings, what it costs, and whether crafted servers are refused.

    .venv/bin/python scripts/bench_guard.py honest                  # 20 trainings of 600 rounds at default limits
    .venv/bin/python scripts/bench_guard.py honest --only vit --seed 900
    .venv/bin/python scripts/bench_guard.py cost                    # CPU time of guarded rounds over unguarded ones, CIFAR-10
    .venv/bin/python scripts/bench_guard.py crafted                 # one round of each malicious server

Limits were chosen on seed 900; the default seeds are others. Networks are narrow, so that 600 rounds take half a minute.
"""

import argparse
import contextlib
import logging
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from fl_app import engines
from fl_app.engines.watcher import Watcher
from fl_app.experiment.config import Experiment
from fl_app.experiment.guards import build
from fl_app.store.files import RunFailed

HONEST = {
    "lenet5": (5, 32),
    "mlp": (5, 32),
    "convnet(width=4)": (3, 16),
    "resnet10(width=8)": (3, 16),
    "vit(dim=48, depth=3)": (3, 16),
}
"""Model -> (clients, batch size)."""
COST: dict[str, tuple[int, int, Literal["gradient", "delta"], int]] = {
    "lenet5": (10, 32, "gradient", 60),  # the default experiment, on other data
    "mlp": (10, 32, "gradient", 60),
    "lenet5 of one client": (1, 32, "gradient", 300),
    "lenet5 of one client with four local steps": (1, 32, "delta", 100),
    "mlp of one client": (1, 32, "gradient", 300),
    "convnet(width=16)": (1, 16, "gradient", 6),
    "resnet10": (1, 16, "gradient", 5),
    "vit": (1, 16, "gradient", 5),
}
"""Model -> (clients, batch size, update, rounds); clients of one process check the same weights once."""
CRAFTED = {
    "imprint": "lenet5",
    "imprint(sparse=True)": "resnet10(width=8)",
    "loki": "lenet5",
    "traps": "mlp",
    "fishing(kind='class')": "lenet5",
    "fishing": "resnet10(width=8)",
    "fishing(kind='class', label=3)": "vit(dim=48, depth=3)",
}
"""Server -> model."""
OF_WEIGHTS = ("transmit", "duplicates", "aligned", "balance", "empty_rows", "peak", "bias")
WITHOUT = {
    "all checks": "refuse",
    "weights alone": "refuse(pixels=None)",
    "examples alone": f"refuse(pixels=None, {', '.join(f'{name}=None' for name in OF_WEIGHTS)})",
}
"""Which checks there are -> a guard with these."""


class Tally(logging.Handler):
    """Counts what guards say, and keeps what they measure."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.said: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()
        self.measured: dict[str, list[float]] = defaultdict(list)

    def emit(self, record: logging.LogRecord) -> None:
        """Note one line."""
        if isinstance(record.args, Mapping):
            for name, value in record.args.items():
                self.measured[name].append(value)
        elif record.msg in ("guard: %s", "refused: %s"):
            self.said[record.msg.partition(":")[0]] += 1
            self.lines[record.getMessage()] += 1


@contextmanager
def listening() -> Iterator[Tally]:
    """All that the guards of the runs inside say."""
    log, tally = logging.getLogger("thorns"), Tally()
    before = log.level, log.propagate
    log.addHandler(tally)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    try:
        yield tally
    finally:
        log.removeHandler(tally)
        log.level, log.propagate = before


def trained(experiment: Experiment) -> dict[str, Any]:
    """The last line of a run's metrics."""
    with tempfile.TemporaryDirectory() as folder:
        run = engines.run(experiment.changed(run_dir=str(Path(folder) / "run")), "inline", Watcher())
        return dict(run.metrics()[-1])


def honest(only: str, seed: int, rounds: int) -> None:
    """Refusals and warnings of honest trainings."""
    limits = build("refuse")
    total: Counter[str] = Counter()
    for dataset in ("mnist", "cifar10"):
        for model, (clients, batch) in HONEST.items():
            for partition in ("iid", "dirichlet(alpha=0.1)"):
                title = f"{dataset} {model} {partition}"
                if only not in title:
                    continue
                experiment = Experiment(
                    dataset=dataset,
                    model=model,
                    partition=partition,
                    clients=clients,
                    batch_size=batch,
                    rounds=rounds,
                    eval_every=10**6,
                    seed=seed,
                    guard="refuse",
                )
                with listening() as tally:
                    last = trained(experiment)
                answers = clients * rounds
                total += Counter(answers=answers, **tally.said)
                accuracy = f"accuracy {last['accuracy']:.3f}"
                print(f"{title}: {tally.said['refused']} refused, {tally.said['guard']} warnings of {answers}; {accuracy}")
                for line in list(tally.lines)[:5]:
                    print(f"    {line}")
                worst = {name: max(values) for name, values in sorted(tally.measured.items())}
                shown = (f"{name} {value:.3g}/{getattr(limits, name) or '-'}" for name, value in worst.items())
                print("    largest measures / limits:", ", ".join(shown), flush=True)
    share = total["guard"] / max(1, total["answers"])
    print(f"all: {total['refused']} refused, {total['guard']} warnings ({share:.2%}) of {total['answers']} answers")


class Clock(Watcher):
    """CPU time of the rounds after the first; stops before the last, which would be evaluated."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.times = rounds, dict[int, float]()

    def on_round(self, line: dict[str, Any]) -> None:
        """Note the time."""
        self.times[line["round"]] = time.process_time()

    def stop_requested(self) -> bool:
        """Before the last."""
        return max(self.times) >= self.rounds

    def seconds(self) -> list[float]:
        """Of each round."""
        return [after - before for before, after in pairwise(self.times.values())]


def cost(only: str, seed: int, repeats: int) -> None:
    """CPU time of guarded rounds over that of unguarded ones, in turns."""
    logging.getLogger("thorns").setLevel(logging.ERROR)
    for title, (clients, batch, update, rounds) in COST.items():
        if only not in title:
            continue
        spent: dict[str, list[list[float]]] = {"off": [], "warn": []}
        for _ in range(repeats):
            for guard, times in spent.items():
                clock = Clock(rounds)
                experiment = Experiment(
                    dataset="cifar10",
                    model=title.partition(" ")[0],
                    update=update,
                    local_steps=4 if update == "delta" else 1,
                    clients=clients,
                    batch_size=batch,
                    rounds=rounds + 1,
                    eval_every=10**6,
                    seed=seed,
                    guard=guard,
                )
                with tempfile.TemporaryDirectory() as folder:
                    engines.run(experiment.changed(run_dir=str(Path(folder) / "run")), "inline", clock)
                times.append(clock.seconds())
        off, warn = (quick([one for each in times for one in each]) for times in spent.values())
        ratios = [quick(guarded) / quick(plain) for plain, guarded in zip(*spent.values(), strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{title}: a round of {off * 1e3:.1f} ms costs {warn / off:.2f} x guarded ({spread})", flush=True)


def quick(seconds: Sequence[float]) -> float:
    """The lower quartile: what else the machine does makes rounds longer, never shorter."""
    return sorted(seconds)[len(seconds) // 4]


def crafted(only: str, seed: int) -> None:
    """Which checks refuse the round in which a malicious server attacks, also where others are left out."""
    for dataset in ("mnist", "cifar10"):
        for server, model in CRAFTED.items():
            for which, guard in WITHOUT.items():
                title = f"{dataset} {model} server={server}, {which}"
                if only not in title:
                    continue
                clients = 4
                experiment = Experiment(
                    dataset=dataset,
                    model=model,
                    server=server,
                    clients=clients,
                    batch_size=32,
                    rounds=1,
                    capture="1",
                    seed=seed,
                    guard=guard,
                )
                with listening() as tally, contextlib.suppress(RunFailed):  # a run whose every client refuses fails
                    trained(experiment)
                print(f"{title}: {tally.said['refused']} of {clients} refused", flush=True)
                for line, number in tally.lines.items():
                    print(f"    {number} x {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("honest", "cost", "crafted"))
    parser.add_argument("--only", default="", help="what a title must contain")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.what == "honest":
        honest(options.only, options.seed, options.rounds)
    elif options.what == "cost":
        cost(options.only, options.seed, options.repeats)
    else:
        crafted(options.only, options.seed)


if __name__ == "__main__":
    main()
