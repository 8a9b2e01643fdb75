#!/usr/bin/env python
"""What several local steps leak: unrolled, as one gradient, at surrogate weights; LeNet on test images, with intervals.

    .venv/bin/python scripts/bench_fedavg.py                              # images and a network that nothing was tuned on
    .venv/bin/python scripts/bench_fedavg.py --dataset cifar10 --only adam
    .venv/bin/python scripts/bench_fedavg.py --first 0 --network 1        # where settings were chosen

Labels are inferred, never given. The floor is the mean image of the classes that the attacker itself inferred. Intervals are
those of Student's t over targets, 95 %.
"""

import argparse
import time
from dataclasses import dataclass

import torch
from bench_informed import Case, class_means, overlap, scene, scored
from torch import Tensor

import adversary
from fl_app.core.local import LocalRule
from fl_app.scoring.score import summarize

UNROLLED = "cosine_lbfgs(iterations=500, tv=0.001)"
ONE_GRADIENT = (
    "matching(objective=cosine, space=pixels(init=uniform, boxed=False), priors=[tv(0.001)], "
    "observers=[surrogate(start=0, pace=0)], optimizer=lbfgs(iterations=500))"
)
SURROGATE = "sme(iterations=500, tv=0.001)"
SIGNS = (
    "matching(objective=wrong_signs, space=pixels(init=uniform), priors=[tv(0.003)], observers=[surrogate(start=0, pace=0)], "
    "optimizer=adam(iterations=1000, signed=True, decay=True))"
)
ALL = {"unrolled": UNROLLED, "surrogate": SURROGATE, "one gradient": ONE_GRADIENT}


@dataclass(frozen=True)
class Row:
    """How clients train, and who attacks them."""

    rule: LocalRule
    attacks: dict[str, str]


def steps(number: int, batch: int, examples: int, lr: float = 0.01) -> LocalRule:
    """So many local steps of SGD."""
    return LocalRule(kind="delta", batch_size=batch, steps=number, lr=lr, examples=examples)


ROWS = {
    "sgd, 5 steps on 1 image": Row(steps(5, 1, 1), ALL),
    "adam, 5 steps on 1 image": Row(
        LocalRule(kind="delta", batch_size=1, steps=5, lr=0.001, examples=1, optimizer="adam"),
        ALL | {"signs": SIGNS},
    ),
    "sgd, 8 images in batches of 4, 2 epochs": Row(steps(4, 4, 8), ALL),
    "sgd, 8 images in batches of 4, 10 epochs": Row(steps(20, 4, 8), ALL),
}


def shown(values: Tensor, digits: int) -> str:
    """A mean over targets with its interval."""
    found = summarize([{"value": value} for value in values.tolist()], "value")
    half = float("nan") if found.high is None or found.mean is None else found.high - found.mean
    return f"{found.mean:.{digits}f} ± {half:.{digits}f}"


def run(name: str, row: Row, options: argparse.Namespace) -> None:
    """Attack one row by all its attackers."""
    case = Case("none", examples=row.rule.num_examples, rule=row.rule)
    x, y, seen, task = scene(case, options.dataset, options.targets, options.first, options.network)
    print(f"  {name}: {row.rule.code()}")
    for attacker, text in row.attacks.items():
        if options.attacker not in attacker:
            continue
        attack, began = adversary.build(text), time.process_time()
        guess = attack(seen, task, options.network)
        seconds = (time.process_time() - began) / options.targets
        assert isinstance(guess, adversary.Guess)
        floor, _ = scored(class_means(options.dataset, guess.y), x)
        quality, likeness = scored(guess.x, x)
        right = overlap(guess.y, y)
        scores = f"{shown(quality, 1):>12} dB   SSIM {shown(likeness, 2):>11}   class mean {shown(floor, 1):>11} dB"
        print(f"    {attacker:14} {scores}   labels {right:4.2f}   {seconds:6.1f} s of CPU per target", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--targets", type=int, default=16)
    parser.add_argument("--first", type=int, default=7000, help="first test image; settings were chosen on those from 0 on")
    parser.add_argument("--network", type=int, default=77, help="seed of the weights; settings were chosen on seed 1")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--attacker", default="", help="attackers whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.dataset}, {options.targets} targets from test image {options.first}, network seed {options.network}")
    for name, row in ROWS.items():
        if options.only in name:
            run(name, row, options)


if __name__ == "__main__":
    main()
