#!/usr/bin/env python
"""Who can tell that an example was there: membership attacks against their floor, and the canary audit of dp_sgd.

    .venv/bin/python scripts/bench_membership.py trained --dataset mnist     # five attacks, overfit and honest networks
    .venv/bin/python scripts/bench_membership.py updates --dataset cifar10   # first updates by batch size and noise
    .venv/bin/python scripts/bench_membership.py audit                       # empirical epsilon beside the accountant's

Runs are kept in the folder of --out and not done again. LeNet-5, three seeds whose candidates are taken together; shares of
members come with Clopper-Pearson intervals, AUC with the 95 % interval over targets.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import client_defenses
from client_defenses.tools.accounting import gaussian_epsilon
from fl_app import data, models
from fl_app.analysis.audit_dp import Effort, audit
from fl_app.analysis.canaries import Stage
from fl_app.analysis.results import AttackResult, read_run
from fl_app.experiment.config import from_run_config
from fl_app.scoring import roc
from fl_app.scoring.questions import load_judged
from fl_app.scoring.score import summarize
from fl_app.sweeps.plan import Attacking
from fl_app.sweeps.work import attack, train

SEEDS = (0, 1, 2)
ATTACKS = ("loss", "series", "lira", "alignment", "likelihood_ratio")
AT_UPDATES = ("alignment", "likelihood_ratio")
"""Who knows the law of a noise uses the likelihood ratio, whichever of the two was asked for: there is one row of that."""
OVERFIT = {"client-examples": 16, "batch-size": 8, "rounds": 300}
HONEST = {"client-examples": 5000, "batch-size": 32, "rounds": 300}
LATE = {"clients": 10, "capture": "150,200,250,300", "capture-clients": "0-2", "eval-every": 300}
FIRST = {"clients": 12, "client-examples": 100, "rounds": 1, "capture": 1, "eval-every": 1}


@dataclass(frozen=True)
class Case:
    """One setting, the attacks on it, and how it is called."""

    name: str
    settings: dict[str, Any]
    attacks: tuple[str, ...]


def trained() -> list[Case]:
    return [Case(name, {**LATE, **more}, ATTACKS) for name, more in (("overfit", OVERFIT), ("honest", HONEST))]


def updates() -> list[Case]:
    batches = [Case(f"batch {n}, none", {**FIRST, "batch-size": n}, AT_UPDATES) for n in (1, 4, 16, 64)]
    noisy = [
        Case(f"batch {n}, {text}", {**FIRST, "batch-size": n, "defense": text}, AT_UPDATES)
        for n, text in (
            (1, "dp_sgd(noise=0.01)"),
            (1, "dp_sgd(noise=0.1)"),
            (1, "dp_sgd(noise=0.5)"),
            (1, "dp_sgd(noise=1.0)"),
            (16, "dp_sgd(noise=0.01)"),
            (16, "dp_sgd(noise=0.1)"),
        )
    ]
    return batches + noisy


def rows_of(case: Case, dataset: str, out: Path) -> list[str]:
    """The table's rows of one case, all seeds together."""
    found: dict[str, list[AttackResult]] = {}
    accuracies = []
    for seed in SEEDS:
        place = out / dataset / case.name.replace(", ", "-").replace(" ", "-") / f"seed-{seed}"
        settings = {"dataset": dataset, "model": "lenet5", "seed": seed, "run-dir": str(place), **case.settings}
        train(from_run_config(settings))
        for text in case.attacks:
            if not any(one.asked == text for one in read_run(place).attacks):
                attack(place, Attacking(text, (), True, False, False, ""))
        result = read_run(place)
        accuracies.append(result.last["accuracy"])
        for one in result.attacks:
            found.setdefault(f"{one.asked} ({one.who})" if one.who != "attack" else one.asked, []).append(one)
    accuracy = sum(accuracies) / len(accuracies)
    return [_row(case.name, f"{accuracy:.3f}", name, parts) for name, parts in found.items()]


def _row(case: str, accuracy: str, name: str, parts: list[AttackResult]) -> str:
    targets = [one for part in parts for one in part.targets]
    auc = summarize([one.values if one.done else None for one in targets], "auc")
    gain = summarize([one.values if one.done else None for one in targets], "advantage")
    judged = [load_judged(part.folder) for part in parts]
    members, others = (torch.cat([getattr(one, side) for one in judged]) for side in ("members", "others"))
    cells = [case, accuracy, f"`{name}`", _number(auc), _number(gain)]
    for rate in roc.RATES:
        share = roc.found_at(members, others, rate)
        cells.append("-" if share is None else f"{share.value:.3f} [{share.low:.3f}, {share.high:.3f}]")
    return "| " + " | ".join([*cells, f"{len(members)} / {len(others)}"]) + " |"


def _number(found: Any) -> str:
    return "-" if found.mean is None else f"{found.mean:.3f} ± {(found.high - found.low) / 2:.3f}"


def attacks(cases: list[Case], dataset: str, out: Path) -> None:
    print(f"{dataset}; floor (prior guess): AUC 0.5, advantage 0, the share at a rate is the rate\n")
    heads = ["setting", "accuracy", "attack", "AUC", "advantage", *(f"found at {rate:.1%} false" for rate in roc.RATES)]
    print("| " + " | ".join([*heads, "members / others"]) + " |")
    print("|" + "---|" * (len(heads) + 1))
    for case in cases:
        for row in rows_of(case, dataset, out):
            print(row, flush=True)


def audits(trials: int, canaries: int) -> None:
    """dp_sgd at several noises, on LeNet-5 at initial weights beside four MNIST digits."""
    model = models.build("lenet5", (1, 28, 28), 10, seed=0, normalize=((0.1307,), (0.3081,)))
    x, y = data.load("mnist").train.at(slice(0, 4))
    print("| noise | audit | releases | right | lower bound | if Gaussian | accountant | accountant / best bound |")
    print("|---|---|---|---|---|---|---|---|")
    for noise in (0.5, 1.0, 2.0):
        name = f"dp_sgd(noise={noise})"
        stage = Stage(model, models.parameters_of(model), x, y, client_defenses.build(name))
        for effort in (Effort(trials, 0, 1, 0.95), Effort(0, canaries, 1, 0.95), Effort(0, canaries, 16, 0.95)):
            (one,) = audit(stage, name, 1e-5, effort).audits
            assert one.upper >= gaussian_epsilon(noise, 1, 1e-5)
            gaussian = "-" if one.lower_gaussian is None else f"{one.lower_gaussian:.2f}"
            factor = f"{one.upper / one.empirical:.2f}" if one.empirical else "-"
            words = f"{one.trials} {'canaries' if one.kind == 'one run' else 'releases'}"
            right = f"{one.right} of {one.scored}"
            cells = [f"{noise:g}", f"{one.kind}, {words}", str(one.releases), right, f"{one.lower:.2f}", gaussian]
            print("| " + " | ".join([*cells, f"{one.upper:.2f}", factor]) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["trained", "updates", "audit"])
    parser.add_argument("--dataset", default="mnist", choices=["mnist", "cifar10"])
    parser.add_argument("--out", type=Path, default=Path("runs/membership"))
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--canaries", type=int, default=500)
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    if args.part == "audit":
        audits(args.trials, args.canaries)
    else:
        attacks({"trained": trained, "updates": updates}[args.part](), args.dataset, args.out)
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
