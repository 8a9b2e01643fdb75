#!/usr/bin/env python
"""CI-Net against matching pixels at equal time, on batches of CIFAR-10 that nothing was tuned on.

    .venv/bin/python scripts/bench_untrained.py                              # LeNet, batch 8
    .venv/bin/python scripts/bench_untrained.py --model "resnet10(activation='sigmoid')" --attack "ci_net(iterations=1000)"
    .venv/bin/python scripts/bench_untrained.py --first 0 --networks 1       # where settings were chosen

Labels are given, as to the paper's attack. Pixels are searched for as many seconds as the networks took, by L-BFGS and by
the signed Adam of Inverting Gradients; the best iterate counts. Times are CPU seconds of one thread for one target.
"""

import argparse
import time
from dataclasses import replace

import torch
from bench_informed import Case, line, scene, scored
from torch import Tensor

import adversary
from adversary import Attack, Guess
from adversary.search.progress import within
from fl_app.core.observation import Knowledge, Observation, Task

PIXELS = ("cosine_lbfgs(iterations=1000000)", "inverting_gradients(iterations=4000)")


def attacked(attack: Attack, seen: list[Observation], task: Task, seed: int, seconds: float) -> tuple[Tensor, float, float]:
    """(the reconstructions, CPU seconds of a target, seconds by the clock), each target searched so long at most."""
    found, began, clock = [], time.process_time(), time.monotonic()
    for one in seen:
        with within(seconds):
            guess = attack([one], task, seed)
        assert isinstance(guess, Guess)
        found.append(guess.x[0])
    spent, passed = time.process_time() - began, time.monotonic() - clock
    return torch.stack(found), spent / len(seen), passed / len(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--targets", type=int, default=4, help="batches for each network")
    parser.add_argument("--first", type=int, default=7000, help="number of the first test image")
    parser.add_argument("--networks", type=int, nargs="+", default=[77, 78, 79], help="seeds of the attacked network")
    parser.add_argument("--attack", nargs="+", default=["ci_net_lbfgs"])
    parser.add_argument("--no-pixels", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    spent: dict[str, list[float]] = {}
    for place, network in enumerate(options.networks):
        case, first = Case("none", examples=options.batch, model=options.model), options.first
        first += place * options.targets * options.batch  # other images for each network
        x, y, seen, task = scene(case, options.dataset, options.targets, first, network)
        told = [replace(one, knowledge=Knowledge(labels=labels)) for one, labels in zip(seen, y, strict=True)]
        longest = float("inf")
        for text in [*options.attack, *(() if options.no_pixels else PIXELS)]:
            spec = text.replace("(", "(labels=given, ", 1) if "(" in text else f"{text}(labels=given)"
            limit = longest if text in PIXELS else float("inf")
            guess, seconds, passed = attacked(adversary.build(spec), told, task, network, limit)
            if text == options.attack[0]:
                longest = passed
            found.setdefault(text, []).append(scored(guess, x))
            spent.setdefault(text, []).append(seconds)
            print(f"  network {network}", end="")
            line(text, found[text][-1], seconds)
    print(f"{options.dataset}, {options.model}, batch {options.batch}, labels given, {len(options.networks)} networks:")
    for text, parts in found.items():
        values = torch.cat([one for one, _ in parts]), torch.cat([one for _, one in parts])
        line(text, values, sum(spent[text]) / len(spent[text]))


if __name__ == "__main__":
    main()
