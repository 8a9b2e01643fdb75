#!/usr/bin/env python
"""How many labels of a batch each rule finds: initial and trained weights, undefended, images and seeds that chose nothing.

    .venv/bin/python scripts/bench_labels.py                  # minutes on one core
    .venv/bin/python scripts/bench_labels.py --only cifar10

`public` counts by what the network answers to 100 public examples of each class, as `standard` does; it alone needs them.
"""

import argparse
from collections import defaultdict
from statistics import mean, stdev

import torch
from torch import Tensor
from torch.func import functional_call, grad
from torch.nn import functional as F

from adversary.base import Public
from adversary.confidences import confidences, counted
from adversary.labels import LabelRule, infer
from fl_app import data, models
from fl_app.core.local import LocalRule
from fl_app.core.observation import Observation, Task
from fl_app.core.seeds import generator

TRAINED, TARGETS, PUBLIC = slice(0, 20_000), slice(20_000, 30_000), slice(30_000, 40_000)
"""Training images that weights, targets and public examples are taken from."""
RULES: tuple[LabelRule, ...] = ("count", "count_rows", "rows", "ilrg")


def found(guess: Tensor, true: Tensor, classes: int) -> float:
    """The share of labels that are right, as multisets."""
    both = torch.minimum(torch.bincount(guess, minlength=classes), torch.bincount(true, minlength=classes))
    return both.sum().item() / len(true)


def measured(dataset: str, network: str, steps: int, batch: int, batches: int, seed: int) -> dict[str, list[float]]:
    """The share of labels that each rule finds, by batch, after so many steps of Adam."""
    known, rng = data.load(dataset), generator(seed, "labels", dataset, network)
    torch.manual_seed(seed)
    model = models.build(network, known.space.shape, known.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        x, y = known.train.at(torch.randint(TRAINED.start, TRAINED.stop, (32,), generator=rng))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    params = {name: value.detach() for name, value in model.named_parameters()}
    task = Task(model, known.space, known.num_classes)
    answers = confidences(task, params, Public(*known.train.at(torch.arange(PUBLIC.start, PUBLIC.stop))))
    shares = defaultdict(list)
    for _ in range(batches):
        x, y = known.train.at(torch.randint(TARGETS.start, TARGETS.stop, (batch,), generator=rng))
        update = grad(lambda p, x=x, y=y: F.cross_entropy(functional_call(model, p, (x,)), y))(params)
        seen = Observation(params=params, update=update, rule=LocalRule(batch_size=batch), num_examples=batch, server_round=1)
        for rule in RULES:
            shares[rule].append(found(infer(rule, seen, task, rng), y, known.num_classes))
        shares["public"].append(found(counted(seen, task, answers), y, known.num_classes))
    return shares


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("mnist", "cifar10"))
    parser.add_argument("--batches", type=int, default=32)
    parser.add_argument("--seeds", type=int, nargs="+", default=[41, 42, 43])
    chosen = parser.parse_args()
    names = [*RULES, "public"]
    print(f"| data, network, steps, batch | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for dataset in [chosen.only] if chosen.only else ["mnist", "cifar10"]:
        for network in ("lenet", "lenet5"):
            for steps in (0, 200):
                for batch in (8, 32):
                    runs = [measured(dataset, network, steps, batch, chosen.batches, seed) for seed in chosen.seeds]
                    cells = []
                    for name in names:
                        values = [value for run in runs for value in run[name]]
                        cells.append(f"{mean(values):.3f} ± {1.96 * stdev(values) / len(values) ** 0.5:.3f}")
                    print(f"| {dataset}, {network}, {steps}, {batch} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
