#!/usr/bin/env python
"""Searches in generators: their ceilings, GGL under the paper's defenses, GIAS and GIFD against their first phase.

    .venv/bin/python scripts/bench_generators.py ceilings                 # trains what is not there yet
    .venv/bin/python scripts/bench_generators.py ggl --only "mnist prune"
    .venv/bin/python scripts/bench_generators.py phases --targets 8
    .venv/bin/python scripts/bench_generators.py ggl --first 0 --network 1          # where settings were chosen

Targets are training images, one in each update; generators learned from the test part. Every figure of a generator has its
control beside it: the same search on an update whose entries are out of order. Intervals are those of Student's t over
targets, 95 %; times are CPU seconds of one thread.
"""

import argparse
import math
import time
from collections.abc import Iterator

import torch
from scipy.special import stdtrit
from torch import Tensor

import adversary
import client_defenses
from adversary import Guess, generators
from adversary.generative import with_generator
from client_defenses import Memory
from fl_app import data, models
from fl_app.attacking.generators import ensure
from fl_app.core.local import LocalRule, Step, local_update
from fl_app.core.observation import Observation, Task
from fl_app.core.seeds import derive
from fl_app.core.space import Images
from fl_app.scoring.images import psnr
from fl_app.scoring.perceptual import lpips_distance

DATASETS = ("mnist", "fashion_mnist", "cifar10")
DEFENSES = {
    "noise": "dp_gaussian(scale=0.1, clip=None)",
    "clipping": "dp_gaussian(scale=0, clip=4.0)",
    "prune": "prune(ratio=0.9)",
    "soteria": "soteria(ratio=0.8)",
}
RIVAL = "inverting_gradients(iterations=1000, labels=count_rows)"
GGL = "ggl"
FIRST = (
    "matching(objective=cosine, space=latent(weight=0), priors=[tv(1e-6)], labels=count_rows, seeds=3, "
    "optimizer=adam(iterations=500, lr=0.03, decay=True))"
)
PHASES = {"latent alone": FIRST, "gias": "gias", "gifd": "gifd"}


def scene(options: argparse.Namespace, dataset: str, defense: str) -> tuple[Tensor, list[Observation], Task]:
    """(x (targets, 1, *shape), what the server saw, the public facts) of clients with one training image each."""
    source, rule = data.load(dataset), LocalRule(batch_size=1)
    model = models.build(options.model, source.input_shape, source.num_classes, seed=options.network)
    params, built = models.parameters_of(model), client_defenses.build(defense)
    x, y = source.train.at(slice(options.first, options.first + options.targets))
    seen = []
    for client in range(options.targets):
        memory = Memory({}, torch.Generator().manual_seed(derive(options.network, "bench", client)))

        def gradient(step: Step, memory: Memory = memory) -> dict[str, Tensor]:
            return built.protect(step, memory)

        update = local_update(model, params, x[client : client + 1], y[client : client + 1], rule, gradient)
        seen.append(Observation(params=params, update=update, rule=rule, num_examples=1, server_round=1, client=client))
    return x[:, None], seen, Task(model, Images(source.input_shape), source.num_classes)


def attacked(text: str, options: argparse.Namespace, dataset: str, scene: tuple[Tensor, list[Observation], Task]) -> Guess:
    """What an attack answers, in the data set's generator."""
    _, seen, task = scene
    name = generators.load(str(ensure(dataset, small=options.small))).facts.name
    guess = with_generator(adversary.build(text), name)(seen, task, options.seed)
    assert isinstance(guess, Guess)
    return guess


def shown(values: Tensor) -> str:
    """A mean with half of its interval."""
    half = float(stdtrit(len(values) - 1, 0.975)) * values.std().item() / math.sqrt(len(values))
    return f"{values.mean().item():.3g} ± {half:.2g}"


def measured(x: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """PSNR and LPIPS of each target, x and truth (targets, 1, *shape)."""
    pairs = x[:, 0].clamp(0, 1), truth[:, 0]
    return {"dB": psnr(*pairs), "LPIPS": lpips_distance(*pairs, "alex")}


def said(name: str, found: dict[str, Tensor], before: dict[str, Tensor] | None = None, versus: str = "") -> None:
    """Print one line of measures, and what they are beyond others."""
    text = ", ".join(f"{shown(values)} {unit}" for unit, values in found.items())
    beyond = ", ".join(f"{shown(found[unit] - before[unit])} {unit}" for unit in found) if before else ""
    print(f"    {name:14} {text}{f'; minus {versus}: {beyond}' if beyond else ''}", flush=True)


def cells(options: argparse.Namespace, defenses: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The data sets and defenses that were asked for."""
    for dataset in ("mnist", "cifar10"):
        for name, defense in defenses.items():
            if all(word in f"{dataset} {name}" for word in options.only.split()):
                print(f"{dataset}, {name}: {defense}, {options.model}, {options.targets} targets", flush=True)
                yield dataset, defense


def ceilings(options: argparse.Namespace) -> None:
    """The ceiling of each generator, which is trained unless it is there."""
    for dataset in DATASETS:
        if options.only in dataset:
            began = time.process_time()
            kept = generators.load(str(ensure(dataset, small=options.small)))
            print(f"{dataset}: {shown(kept.ceiling)} dB, n = {len(kept.ceiling)}, learned from {kept.facts.data}, ", end="")
            print(f"{kept.facts.training.steps} steps, {time.process_time() - began:.0f} s", flush=True)


def ggl(options: argparse.Namespace) -> None:
    """GGL, its control, and Inverting Gradients on the same updates."""
    for dataset, defense in cells(options, DEFENSES):
        made = scene(options, dataset, defense)
        began = time.process_time()
        guess = attacked(options.attack or GGL, options, dataset, made)
        assert guess.control is not None
        ours, control = measured(guess.x, made[0]), measured(guess.control, made[0])
        between = time.process_time()
        rival = measured(attacked(RIVAL, options, dataset, made).x, made[0])
        said("ggl", ours)
        said("its control", control, ours, "ggl")
        said("rival", rival, ours, "ggl")
        print(f"    {between - began:.0f} s with the control, rival {time.process_time() - between:.0f} s", flush=True)


def phases(options: argparse.Namespace) -> None:
    """GIAS and GIFD, and the search in the latent alone, undefended."""
    for dataset, defense in cells(options, {"none": "none"}):
        made, before = scene(options, dataset, defense), None
        for name, text in PHASES.items():
            began = time.process_time()
            guess = attacked(text, options, dataset, made)
            assert guess.control is not None
            found = measured(guess.x, made[0])
            said(name, found, before, "latent alone")
            said("its control", measured(guess.control, made[0]))
            print(f"    {time.process_time() - began:.0f} s with the control", flush=True)
            before = before or found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ceilings", "ggl", "phases"))
    parser.add_argument("--only", default="", help="data set and defense, such as 'mnist prune'")
    parser.add_argument("--targets", type=int, default=16)
    parser.add_argument("--first", type=int, default=1000, help="number of the first training image")
    parser.add_argument("--network", type=int, default=2026, help="seed of the network's weights")
    parser.add_argument("--seed", type=int, default=0, help="seed of the attack")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--attack", default="", help="another attack in the place of ggl")
    parser.add_argument("--small", action="store_true", help="small generators, in seconds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    {"ceilings": ceilings, "ggl": ggl, "phases": phases}[options.what](options)


if __name__ == "__main__":
    main()
