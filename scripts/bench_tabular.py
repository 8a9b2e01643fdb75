#!/usr/bin/env python
"""Rows of tables rebuilt from one update of an MLP: the share of cells that are right, beside blind answers and defenses.

    .venv/bin/python scripts/bench_tabular.py plain                 # batch 1, 4, 16, undefended; Titanic and breast cancer
    .venv/bin/python scripts/bench_tabular.py defended --batch 1    # Titanic under defenses, naive and informed

Three networks that nobody has trained yet, and rows of the training part; the settings of `rows` were chosen on rows of
Titanic's test part with other networks. A cell is right if the category is the same, or the number
within 5 % of its column's range. ± is the half of the 95 % interval over targets (an update each).
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

import adversary
import client_defenses
from adversary import Attack, AttackError, Facts, Guess, Public
from client_defenses import Memory
from fl_app import data, models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.seeds import generator
from fl_app.core.table import Rows
from fl_app.scoring.base import Tools
from fl_app.scoring.floors import floors_for
from fl_app.scoring.metrics import METRICS
from fl_app.scoring.score import score, summarize

SEEDS = (0, 1, 2)
DEFENSES = (
    "none",
    "soteria",
    "prune(ratio=0.9)",
    "gradient_dropout",
    "recup(attribute=sex)",
    "dp_sgd(noise=0.01)",
    "dp_sgd(noise=0.1)",
)
CELLS = {"cells": METRICS["cells"]}


class Scene(NamedTuple):
    """Some targets of one seed: rows x (targets, batch, floats), classes, their places in the training part, what is seen."""

    x: Tensor
    y: Tensor
    places: Tensor
    seen: list[Observation]
    task: Task


def scene(table: str, batch: int, targets: int, seed: int, defense: str = "none") -> Scene:
    """The first updates of an untrained network on batches that a seed draws."""
    source = data.load(f"table(kind='{table}')")
    net = models.build("mlp", source.input_shape, source.num_classes, seed=seed, normalize=(source.mean, source.std))
    params, rule = models.parameters_of(net), LocalRule(batch_size=batch)
    order = torch.randperm(len(source.train), generator=generator(seed, "rows"))[: targets * batch]
    x, y = source.train.at(order)
    x, y, places = x.view(targets, batch, -1), y.view(targets, batch), order.view(targets, batch)
    built, knowledge = client_defenses.build(defense).within(source.space), Knowledge()
    seen = []
    for i in range(targets):
        memory = Memory.fresh(1000 * seed + i)
        update = local_update(net, params, x[i], y[i], rule, lambda step, own=memory: built.protect(step, own))
        seen.append(
            Observation(
                params=params, update=update, rule=rule, num_examples=batch, server_round=1, client=i, knowledge=knowledge
            )
        )
    return Scene(x, y, places, seen, Task(net, source.space, source.num_classes))


def cells(at: Scene, x: Sequence[Tensor], y: Sequence[Tensor]) -> list[float | None]:
    """The share of right cells of each target."""
    assert isinstance(at.task.space, Rows)
    tools = Tools(rows=at.task.space)
    pairs = zip(x, y, at.x, at.y, strict=True)
    return [score(*one, CELLS, tools).row()["cells"] for one in pairs]


def attacked(attack: Attack, at: Scene, public: Public) -> list[float | None]:
    """What an attack comes to on the targets of a scene."""
    if attack.trained:
        attack = attack.taught(attack.learn(at.task, at.seen[0], public, torch.Generator().manual_seed(0)))
    guess = attack(at.seen, at.task, 0)
    assert isinstance(guess, Guess)
    return cells(at, guess.x, guess.y)


def say(name: str, values: Sequence[float | None], seconds: float = 0.0) -> None:
    found = summarize([{"cells": value} for value in values], "cells")
    assert found.mean is not None
    assert found.low is not None
    assert found.high is not None
    print(
        f"  {name:58} {found.mean:.3f} ± {(found.high - found.low) / 2:.3f}  ({found.n} targets, {seconds:.0f} s)", flush=True
    )


def floors(table: str, batch: int, targets: int) -> None:
    """What blind answers reach."""
    train = data.load(f"table(kind='{table}')").train
    found: dict[str, list[float | None]] = {}
    for seed in SEEDS:
        at = scene(table, batch, targets, seed)
        for name, floor in floors_for(at.task.space).items():
            blind = [floor(train, y, generator(seed, name, i), at.places[i]) for i, y in enumerate(at.y)]
            found.setdefault(name, []).extend(cells(at, [at.task.space.clamp(x) for x in blind], at.y))
    for name, values in found.items():
        say(f"floor: {name}", values)


def measured(name: str, attack: Attack, scenes: Sequence[Scene], public: Public) -> None:
    began, values = time.perf_counter(), list[float | None]()
    try:
        for at in scenes:
            values += attacked(attack, at, public)
    except AttackError as error:
        print(f"  {name:58} not possible: {error}", flush=True)
        return
    say(name, values, time.perf_counter() - began)


def plain(batches: Sequence[int], targets: int, attacks: Sequence[str]) -> None:
    """Undefended."""
    for table in ("titanic", "breast_cancer"):
        source = data.load(f"table(kind='{table}')")
        public = Public(*source.test.at(slice(0, None)))
        for batch in batches:
            print(f"{table}, batch {batch}, undefended", flush=True)
            floors(table, batch, targets)
            scenes = [scene(table, batch, targets, seed) for seed in SEEDS]
            for text in attacks:
                measured(text, adversary.build(text), scenes, public)


def defended(batches: Sequence[int], targets: int, defenses: Sequence[str]) -> None:
    """Titanic under defenses."""
    public = Public(*data.load("table(kind='titanic')").test.at(slice(0, None)))
    for batch in batches:
        print(f"titanic, batch {batch}", flush=True)
        floors("titanic", batch, targets)
        for defense in defenses:
            scenes = [scene("titanic", batch, targets, seed, defense) for seed in SEEDS]
            for text in ("readout", "rows(iterations=500)"):
                measured(f"{defense}: {text}", adversary.build(text), scenes, public)
            knowing = [
                at._replace(seen=[replace(one, knowledge=Knowledge(defense=defense)) for one in at.seen]) for at in scenes
            ]
            facts = Facts(examples=batch, public=len(public.y))
            for one in adversary.build("rows(iterations=500)").informed(defense, facts):
                name = f"{defense}: informed, {one.name or 'rows'}"
                if one.attack is None:
                    print(f"  {name:58} not possible: {one.why_not}", flush=True)
                elif "evaluator" not in one.grants:
                    measured(name, one.attack, knowing, public)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["plain", "defended"])
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--targets", type=int, default=4, help="per seed")
    parser.add_argument("--attacks", nargs="*", default=["readout", "spear(draws=1000)", "rows"], help="of plain")
    parser.add_argument("--defenses", nargs="*", default=DEFENSES, help="of defended")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "plain":
        plain(options.batch, options.targets, options.attacks)
    else:
        defended(options.batch, options.targets, options.defenses)


if __name__ == "__main__":
    main()
