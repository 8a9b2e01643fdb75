#!/usr/bin/env python
"""What each defense leaks to informed attackers: single updates of LeNet on test images, with intervals.

    .venv/bin/python scripts/bench_informed.py                            # images and a network that nothing was tuned on
    .venv/bin/python scripts/bench_informed.py --dataset cifar10 --only dp_sgd
    .venv/bin/python scripts/bench_informed.py --first 0 --network 1      # where settings were chosen

Labels are inferred, never given. The floor is the mean image of the class that the attacker itself inferred.
"""

import argparse
import math
import time
from dataclasses import dataclass, replace

import torch
from scipy.special import stdtrit
from torch import Tensor

import adversary
import client_defenses
from adversary import Facts, Public
from client_defenses import Memory
from fl_app import data, models
from fl_app.core.local import LocalRule, Step, local_update
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.seeds import derive
from fl_app.core.space import Images
from fl_app.scoring.images import psnr, ssim
from fl_app.scoring.matching import match

PUBLIC = 4000
LEARNED = data.cache_dir() / "attacks"
ATTACK = "cosine_lbfgs(iterations=1000, tv=0.01)"
BATCHES = "gauss_newton(iterations=60)"


@dataclass(frozen=True)
class Case:
    """One row: a defense and how its clients train."""

    defense: str
    examples: int = 1
    rounds: int = 1
    model: str = "lenet"
    attack: str = ATTACK
    rule: LocalRule | None = None


CASES = [
    Case("none"),
    Case("gradient_dropout(p=0.6, sigma=0.005)"),
    Case("gradient_dropout(p=0.6, sigma='match')"),
    Case("gradient_dropout(p=0.3, sigma='match')"),
    Case("gradient_dropout(p=0.6)", examples=8, attack=BATCHES),
    Case("drop_fedsgd(p=0.1)"),
    Case("dp_sgd(noise=0.1)"),
    Case("dp_sgd(noise=0.1)", rounds=4),
    Case("quantize(bits=2)"),
    Case("sign"),
    Case("prune(ratio=0.99)"),
    Case("quantize(bits=2, memory=True)", rounds=4),
    Case("ldpm(noise=0.01)"),
    Case("soteria"),
    Case("latent_perturbation(mu=1.0)"),
    Case("none", examples=8, attack=BATCHES),
    Case("none", examples=8, attack="ci_net_lbfgs"),
    Case("none", rule=LocalRule(kind="delta", batch_size=1, steps=5, lr=0.01, examples=1)),
]


def scene(case: Case, dataset: str, number: int, first: int, network: int) -> tuple[Tensor, Tensor, list[Observation], Task]:
    """(x, y, what the server saw, the public facts) of `number` clients in `case.rounds` rounds at the same weights."""
    source = data.load(dataset)
    model = models.build(case.model, source.input_shape, source.num_classes, seed=network)
    params, defense = models.parameters_of(model), client_defenses.build(case.defense)
    x, y = source.test.at(slice(first, first + number * case.examples))
    x, y = x.view(number, case.examples, *source.input_shape), y.view(number, case.examples)
    rule = case.rule or LocalRule(batch_size=case.examples)
    seen, memories = [], [Memory.fresh(0) for _ in range(number)]
    for server_round in range(1, case.rounds + 1):
        for client in range(number):
            rng = torch.Generator().manual_seed(derive(network, "bench", client, server_round))
            memory = memories[client] = Memory(memories[client].state, rng)

            def gradient(step: Step, memory: Memory = memory) -> dict[str, Tensor]:
                return defense.protect(step, memory)

            seen.append(
                Observation(
                    params=params,
                    update=local_update(model, params, x[client], y[client], rule, gradient),
                    rule=rule,
                    num_examples=case.examples,
                    server_round=server_round,
                    client=client,
                )
            )
    return x, y, seen, Task(model, Images(source.input_shape), source.num_classes)


def scored(x: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """(PSNR, SSIM) per target, each the mean over its examples after matching."""
    pairs = [(guess[match(guess, true)], true) for guess, true in zip(x, truth, strict=True)]
    return torch.stack([psnr(a, b).mean() for a, b in pairs]), torch.stack([ssim(a, b).mean() for a, b in pairs])


def line(name: str, values: tuple[Tensor, Tensor], seconds: float, labels: float = math.nan) -> None:
    """Print one attacker."""
    shown = []
    for value, digits in zip(values, (1, 2), strict=True):
        half = stdtrit(len(value) - 1, 0.975) * value.std().item() / math.sqrt(len(value)) if len(value) > 1 else math.nan
        shown.append(f"{value.mean():.{digits}f} ± {half:.{digits}f}")
    print(f"    {name:34} {shown[0]:>12} dB   SSIM {shown[1]:>11}   labels {labels:4.2f}   {seconds:6.1f} s", flush=True)


def class_means(dataset: str, y: Tensor) -> Tensor:
    """The mean training image of each class in y (targets, examples)."""
    train = data.load(dataset).train
    means = torch.stack([train.x[train.y == label][:2000].float().mean(0) / 255 for label in range(10)])
    return means[y]


def overlap(guess: Tensor, truth: Tensor) -> float:
    """The share of labels that are right, as multisets per target."""
    right = [
        torch.minimum(torch.bincount(a, minlength=10), torch.bincount(b, minlength=10)).sum()
        for a, b in zip(guess, truth, strict=True)
    ]
    return torch.stack(right).sum().item() / truth.numel()


def run(case: Case, options: argparse.Namespace) -> None:
    """Attack one row naively and informed."""
    x, y, seen, task = scene(case, options.dataset, options.targets, options.first, options.network)
    print(f"  {case.defense}, batch {case.examples}, {case.rounds} update(s) per target, {case.rule or 'gradient'}")
    naive = adversary.build(case.attack)
    facts = Facts(rounds=case.rounds, examples=case.examples, repeats=case.rounds > 1, public=PUBLIC)
    told = [(one.name or "informed", one.attack) for one in naive.informed(case.defense, facts) if one.attack is not None]
    knowledge = Knowledge(defense=case.defense, repeats=case.rounds > 1)
    knowing = [replace(one, knowledge=knowledge) for one in seen]
    for name, attack, shown in [("naive", naive, seen), *((name, attack, knowing) for name, attack in told)]:
        if options.attacker and options.attacker not in name:
            continue
        began = time.perf_counter()
        if attack.trained:
            public = data.load(options.dataset).train.at(slice(0, PUBLIC))  # the targets are test images
            attack = attack.prepare(task, shown[0], Public(*public), 0, LEARNED)
        guess = attack(shown, task, options.network)
        assert isinstance(guess, adversary.Guess)
        first = slice(0, options.targets)
        seconds = time.perf_counter() - began
        line(name, scored(guess.x[first], x), seconds, overlap(guess.y[first], y))
        line("  class mean of its labels", scored(class_means(options.dataset, guess.y[first]), x), 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--targets", type=int, default=16)
    parser.add_argument("--first", type=int, default=7000, help="first test image; settings were chosen on those from 0 on")
    parser.add_argument("--network", type=int, default=77, help="seed of the weights; settings were chosen on seed 1")
    parser.add_argument("--only", default="", help="rows whose defense contains this")
    parser.add_argument("--attacker", default="", help="attackers whose name contains this")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.dataset}, {options.targets} targets from test image {options.first}, network seed {options.network}")
    for case in CASES:
        if options.only in f"{case.defense} batch {case.examples}":
            run(case, options)


if __name__ == "__main__":
    main()
