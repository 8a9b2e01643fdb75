#!/usr/bin/env python
"""Latent perturbation, Tables III to V: what Inverting Gradients rebuilds of weight updates, and what the model is worth.

.venv/bin/python scripts/reproduce/latent_perturbation.py --scale smoke|cpu|paper [--seeds N] [--datasets cifar10]

What is finished stays in --runs: the same command goes on where it was broken off.
"""

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Threads that spin while they wait slow down whatever shares the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
from common import spent, train
from latent_settings import (
    ATTACK,
    ATTACKED,
    COLUMNS,
    GENTLE,
    GENTLE_RATE,
    NOTES,
    PAPER,
    RATES,
    SCALES,
    SPECS,
    USED,
    Method,
    Scale,
    methods_of,
)
from report import made_by, shown
from torch import Tensor, nn

import client_defenses
from adversary.adaptive import informed
from adversary.latent_attack import with_mean_noise
from client_defenses.latent_perturbation import LatentPerturbation
from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker
from fl_app.core.local import Tensors
from fl_app.data.base import DataError
from fl_app.experiment.assets import Assets, assets_of, on_device
from fl_app.experiment.config import Experiment
from fl_app.experiment.runs import experiment_of
from fl_app.experiment.utility import evaluate
from fl_app.scoring.attacks import Scoring
from fl_app.scoring.score import Row, summarize
from fl_app.store.runs import RunDir


@dataclass
class Found:
    """What one method came to: rows by attacker, accuracies by seed."""

    targets: dict[str, list[Row | None]] = field(default_factory=dict)
    used: list[dict[str, float | None]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, who: str, rows: Sequence[Row | None], variance: float) -> None:
        """Add targets, with the squared error on the scale on which the network sees pixels."""
        scaled = (None if one is None else {**one, "mse": (one["mse"] or 0.0) / variance} for one in rows)
        self.targets.setdefault(who, []).extend(scaled)


def base_of(dataset: str, method: Method, seed: int, scale: Scale, options: argparse.Namespace, use: str) -> Experiment:
    slug = re.sub(r"[^a-z0-9.]+", "-", method.name.lower()).strip("-")
    return Experiment(
        dataset=SPECS[dataset],
        model=f"latent_net(width={scale.width})",
        defense=method.defense,
        client_examples=scale.examples,
        seed=seed,
        device="auto" if options.scale == "paper" else "cpu",
        run_dir=str(options.runs / f"{dataset}-{slug}-seed{seed}-{use}"),
    )


def attacked(experiment: Experiment, dataset: str, method: Method, scale: Scale) -> RunDir:
    """One round of five local epochs over eight images, captured."""
    return train(
        experiment.changed(
            clients=scale.targets,
            update="delta",
            batch_size=8,
            local_steps=5,
            local_examples=8,
            local_lr=RATES[dataset][0],
            local_optimizer="sgd" if method.name.startswith("DP-SGD") else "adam",
            optimizer="sgd(lr=1.0)",
            rounds=1,
            eval_every=1,
            capture="1",
        )
    )


def used(experiment: Experiment, dataset: str, method: Method, scale: Scale) -> tuple[Assets, Tensors, dict[str, float | None]]:
    """Train one client with batch 128: (assets, weights, what they are worth without noise, at its mean, under it)."""
    rate, _, dp_rate = RATES[dataset]
    alone = experiment.changed(clients=1, batch_size=128)
    rounds = scale.epochs * (len(assets_of(alone).shares[0]) // 128)
    optimizer = f"sgd(lr={dp_rate})" if method.name.startswith("DP-SGD") else f"adam(lr={rate})"
    run = train(alone.changed(optimizer=optimizer, rounds=rounds, eval_every=rounds))
    assets, kept = assets_of(experiment_of(run)), run.load_checkpoint()
    assert kept is not None
    weights = on_device(kept.weights, assets.device)

    def tested(model: nn.Module) -> dict[str, float]:
        return evaluate(model, weights, assets.splits.test, assets.num_classes, device=assets.device)._asdict()

    plain = tested(assets.model)
    row: dict[str, float | None] = {"accuracy": plain["accuracy"], "macro_f1": plain["macro_f1"]}
    defense = client_defenses.build(method.defense)
    if isinstance(defense, LatentPerturbation):
        memory = run.load_memory(rounds, 0)
        mu, sigma = memory.get("noise/mu", defense.mu), memory.get("noise/sigma", defense.sigma)
        moved = with_mean_noise(assets.model, defense.layer, mu, tuple(assets.splits.test.at(slice(0, 1))[0].shape[1:]))
        row["accuracy at the mean"] = tested(moved)["accuracy"]
        rng = torch.Generator().manual_seed(experiment.seed)

        def draw(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
            return output + (sigma * torch.randn(output.shape, generator=rng)).to(output)

        moved.get_submodule("net.encoder").register_forward_hook(draw)
        under = tested(moved)
        row |= {"accuracy under noise": under["accuracy"], "macro_f1": under["macro_f1"]}
    return assets, weights, row


def measure(
    dataset: str,
    method: Method,
    seed: int,
    scale: Scale,
    options: argparse.Namespace,
    found: Found,
    judge: tuple[nn.Module, Tensors] | None,
) -> tuple[nn.Module, Tensors]:
    """Train, attack and score one method; returns the classifier that judges reconstructions, which the first one trains."""
    began = time.perf_counter()
    assets, weights, row = used(base_of(dataset, method, seed, scale, options, "used"), dataset, method, scale)
    found.used.append(row)
    judge = judge or (assets.model, weights)
    run = attacked(base_of(dataset, method, seed, scale, options, "attacked"), dataset, method, scale)
    naive = options.attack.format(lr=RATES[dataset][1], iterations=scale.iterations)
    assets = assets_of(experiment_of(run))
    std = torch.as_tensor(assets.model.get_buffer("normalize.std"))
    told = [("knows", one.attack, one.grants) for one in informed(naive, method.defense, examples=8) if one.attack is not None]
    gentle = (GENTLE, options.attack.format(lr=GENTLE_RATE, iterations=scale.iterations), ())
    for who, attack, grants in (("naive", naive, ()), *told, gentle):
        session = Session(run, attack, ("labels", *grants), InlineWorker())
        keys = session.captured()
        session.work(session.pending(keys), 64, lambda _: None)
        blind = method.name == "none"  # floors are the same for all methods: shown once
        scoring = Scoring(assets, session.folder, session.failures(), perceptual=False, judge=judge, floors=blind)
        scoring.run(keys)
        found.add(who, scoring.rows(), std.square().mean().item())
        for name, rows in scoring.floors.items():
            found.add(f"floor: {name}", rows, std.square().mean().item())
    found.seconds += spent(run.path, "all", time.perf_counter() - began)
    print(f"{dataset} {method.name} seed {seed}: PSNR {shown(summarize(found.targets['naive'], 'psnr'), 2)}, {row}", flush=True)
    return judge


def lines_of(dataset: str, results: dict[Method, Found]) -> list[str]:
    """The table of a data set: our figure, then the paper's."""
    lines = [f"## {dataset}", "", "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for method, found in results.items():
        for who, rows in found.targets.items():
            cells = [shown(summarize(rows, name), 2 if name == "psnr" else 4) for name in ATTACKED]
            if who == "naive" and method.paper is not None:
                cells[0] += f"; paper {method.paper}"
            utility = [[{name: one.get(name)} for one in found.used if name in one] for name in USED]
            cells += [
                shown(summarize(some, name)) if who == "naive" and some else ""
                for some, name in zip(utility, USED, strict=True)
            ]
            lines.append("| " + " | ".join([method.name, who, *cells]) + " |")
    seconds = ", ".join(f"{method.name} {found.seconds:.0f} s" for method, found in results.items())
    return [*lines, "", f"Training + attacks, in all commands that it took: {seconds}.", ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="smoke")
    parser.add_argument("--seeds", type=int, default=0, help="number of seeds; 0: what the scale says")
    parser.add_argument("--datasets", nargs="+", choices=PAPER, default=None)
    parser.add_argument("--attack", default=ATTACK, help="another attack, with {lr} and {iterations} where they go")
    parser.add_argument("--runs", type=Path, default=None, help="where runs are kept; runs/reproduce-latent-SCALE")
    parser.add_argument("--out", type=Path, default=None, help="docs/results/latent-perturbation-SCALE.md")
    options = parser.parse_args()
    scale = SCALES[options.scale]
    options.runs = options.runs or Path("runs") / f"reproduce-latent-{options.scale}"
    out = options.out or Path("docs/results") / f"latent-perturbation-{options.scale}.md"
    seeds, began = options.seeds or scale.seeds, time.perf_counter()
    text: list[str] = []
    for dataset in options.datasets or scale.datasets:
        results = {method: Found() for method in methods_of(dataset, scale.points)}
        try:
            for seed in range(seeds):
                judge = None
                for method, found in results.items():
                    judge = measure(dataset, method, seed, scale, options, found, judge)
        except DataError as error:
            text += [f"## {dataset}", "", f"Not run: {error}", ""]
            continue
        text += lines_of(dataset, results)
    took = time.perf_counter() - began
    head = [
        f"# Latent perturbation, Tables III to V: scale {options.scale}",
        "",
        f"Scale {options.scale}: {scale.words}. latent_net(width={scale.width}), {scale.targets} targets of 8 images a seed,",
        f"5 local epochs; accuracy after {scale.epochs} epochs on {scale.examples or 'all'} examples; seeds 0 to {seeds - 1}.",
        f"Attack: `{options.attack.format(lr='as printed', iterations=scale.iterations)}`, labels granted.",
        "",
        *made_by(shlex.join([".venv/bin/python", f"scripts/reproduce/{Path(__file__).name}", *sys.argv[1:]]), took),
        "",
    ]
    report = "\n".join([*head, *text, "## What to know", "", NOTES, ""])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(report, encoding="utf-8")
    print(report)


if __name__ == "__main__":
    main()
