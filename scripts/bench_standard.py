#!/usr/bin/env python
"""`standard` against each of its members, and against the public `breaching` package, on images that nothing was tuned on.

    .venv/bin/python scripts/bench_standard.py suite                  # standard minus each member alone, with intervals
    .venv/bin/python scripts/bench_standard.py suite --first 0 --network 1          # where settings were chosen
    .venv/bin/python scripts/bench_standard.py time                   # seconds to 25 dB, LeNet, CIFAR-10, batch 1
    .venv/bin/python scripts/bench_standard.py presets                # breaching's presets with the time that standard took

Times are CPU seconds of one thread, so that a busy machine does not change ratios. `breaching` is fetched into a folder that
is thrown away. It is given the labels; `standard` infers them.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from bench_informed import Case, scene, scored
from breaching_run import Enough, breaching, preset
from scipy.special import stdtrit
from torch import Tensor

from adversary import AttackError, Facts, Guess, Public
from adversary.base import Attack
from adversary.search.checkpoint import Attempt
from adversary.search.problem import Problem
from adversary.standard import CLASS_MEAN, Standard
from fl_app import data
from fl_app.core.observation import Knowledge, Task
from fl_app.core.seeds import generator
from fl_app.scoring.images import psnr

PUBLIC = 2000
GOAL = 25.0
PRESETS = ("invertinggradients", "deepleakage", "modern", "seethroughgradients", "wei", "beyondinfering")
SUITE = [
    (dataset, Case(defense, examples=examples, model=model))
    for dataset in ("mnist", "cifar10")
    for model in ("lenet", "lenet5")
    for examples in (1, 4)
    for defense in ("none", "gradient_dropout(p=0.6, sigma=0.005)", "prune(ratio=0.9)", "dp_sgd(noise=0.1)")
] + [(dataset, Case("none", examples=8, model=model)) for dataset in ("mnist", "cifar10") for model in ("lenet", "lenet5")]

AGAINST = [("cifar10", Case("none")), ("mnist", Case("none", examples=4)), ("cifar10", Case("none", model="lenet5"))]


@dataclass(frozen=True, kw_only=True)
class Remembering(Standard):
    """Asks each member about all targets, once, so that its answers alone and what `standard` makes of them can be compared."""

    def ask(self, name: str, attack: Attack, seen: Any, task: Task, streams: Any) -> Guess:
        """What a member says, of what it said about all targets."""
        told: dict[str, Guess | AttackError] = self.__dict__.setdefault("_told", {})
        if name not in told:
            try:
                told[name] = super().ask(name, attack, self.__dict__["_seen"], task, self.__dict__["_streams"])
            except AttackError as error:
                told[name] = error
        found = told[name]
        if isinstance(found, AttackError):
            raise found
        return Guess.stacked([(found.x[one.client], found.y[one.client], found.loss[one.client]) for one in seen])


def half(values: Tensor) -> float:
    """Half of the 95 % interval of a mean over targets."""
    return float(stdtrit(len(values) - 1, 0.975)) * values.std().item() / math.sqrt(len(values))


def reached(x: Tensor, truth: Tensor, task: Task) -> Tensor:
    """The PSNR of each target; one that diverged counts as grey."""
    return scored(task.space.clamp(x.nan_to_num(0.5)), truth)[0]


def suite(options: argparse.Namespace) -> None:
    """Each member alone, and `standard`, on the same updates."""
    for dataset, case in SUITE:
        name = f"{dataset} {case.model} batch {case.examples} {case.defense}"
        if options.only not in name:
            continue
        x, _, seen, task = scene(case, dataset, options.targets, options.first, options.network)
        attack: Standard = Remembering()
        if case.defense != "none":
            facts = Facts(examples=case.examples, public=PUBLIC)
            (informed,) = Remembering().informed(case.defense, facts)
            assert isinstance(informed.attack, Standard)
            attack = informed.attack
            seen = [replace(one, knowledge=Knowledge(defense=case.defense)) for one in seen]
        public = Public(*data.load(dataset).train.at(slice(0, PUBLIC)))
        attack = attack.taught(attack.learn(task, seen[0], public, generator(0, "bench")))
        streams = [generator(options.network, 1, one.client) for one in seen]
        attack.__dict__.update(_seen=seen, _streams=streams)
        began = time.process_time()
        guess = attack(seen, task, options.network)
        assert isinstance(guess, Guess)
        for member, asked in attack.members(seen[0], task, PUBLIC).items():  # those, too, whom nobody needed any more
            try:
                attack.ask(member, asked, seen[:1], task, streams)
            except AttackError:
                continue
        told = {member: one for member, one in attack.__dict__["_told"].items() if isinstance(one, Guess)}
        ours, alone = reached(guess.x, x, task), {member: reached(one.x, x, task) for member, one in told.items()}
        alone[CLASS_MEAN] = reached(torch.stack([one[CLASS_MEAN].x for one in guess.others]), x, task)
        by_truth, spent = torch.stack(list(alone.values())).amax(0), time.process_time() - began
        print(f"{name}: standard {ours.mean():.1f} ± {half(ours):.1f} dB, by truth {by_truth.mean():.1f}, {spent:.0f} s")
        for member, values in alone.items():
            ahead = ours - values
            words = "   BETTER THAN STANDARD" * bool(ahead.mean() + half(ahead) < 0)
            print(f"    {member:44} {values.mean():5.1f}   standard minus it {ahead.mean():5.1f} ± {half(ahead):.1f}{words}")
        sys.stdout.flush()


@contextmanager
def watched(see: Callable[[Tensor], bool]) -> Iterator[None]:
    """Show the best reconstructions (targets, examples, *shape) after each iteration of our searches; `see` may end them."""
    iterate = Problem._iterate

    def watching(self: Problem, at: Attempt) -> None:
        iterate(self, at)
        found = self.space.answer({name: value for name, value in at.best.items() if "/" not in name and name != "labels"})
        if see(found[:, 0]):
            raise Enough

    Problem._iterate = watching  # type: ignore[method-assign]
    try:
        yield
    except Enough:
        pass
    finally:
        Problem._iterate = iterate  # type: ignore[method-assign]


class Clock:
    """CPU seconds until reconstructions x reach the goal, without the time that looking at them takes."""

    def __init__(self, truth: Tensor, seconds: float = math.inf) -> None:
        self.truth, self.best, self.seconds = truth, -math.inf, seconds
        self.mean: float | None = None
        self._began, self._looking = time.process_time(), 0.0

    @property
    def now(self) -> float:
        """CPU seconds so far."""
        return time.process_time() - self._began - self._looking

    def see(self, x: Tensor) -> bool:
        """Look at reconstructions; whether that is enough, as they are there or the time is used."""
        now, began = self.now, time.process_time()
        values = torch.stack([psnr(a.detach().clamp(0, 1), b).mean() for a, b in zip(x, self.truth, strict=True)])
        self.best = max(self.best, values.mean().item())
        if self.mean is None and values.mean() >= GOAL:
            self.mean = now
        self._looking += time.process_time() - began
        return self.mean is not None or now > self.seconds


def to_goal(options: argparse.Namespace) -> None:
    """Seconds to 25 dB of both, LeNet, CIFAR-10, batch 1."""
    x, y, seen, task = scene(Case("none"), "cifar10", options.targets, options.first, options.network)
    print(f"CIFAR-10, LeNet, batch 1, CPU seconds per target until the mean over targets reaches {GOAL:g} dB")
    clock = Clock(x)
    with watched(clock.see):
        Standard()(seen, task, options.network)
    found = clock.mean
    words = f"never (at best {clock.best:.1f} dB)" if found is None else f"{found / len(x):.2f} s"
    print(f"  standard, {len(x)} targets at once: {words}", flush=True)
    single = []
    for place in range(min(len(x), 4)):
        clock = Clock(x[place : place + 1])
        with watched(clock.see):
            Standard()(seen[place : place + 1], task, options.network)
        single.append(math.inf if clock.mean is None else clock.mean)
    print(f"  standard, one target alone: {', '.join(f'{one:.2f}' for one in single)} s", flush=True)
    with breaching() as package:
        theirs = []
        for place in range(options.theirs):
            clock = Clock(x[place : place + 1], options.seconds)
            preset(package, "invertinggradients", seen[place], y[place], task, see=clock.see)
            theirs.append((clock.mean, clock.now))
            never = f"never within {clock.now:.0f} s (best {clock.best:.1f} dB)"
            words = never if clock.mean is None else f"{clock.mean:.1f} s"
            print(f"  breaching invertinggradients, target {place}: {words}", flush=True)
    if found is not None:
        bound = sum(spent if reached_at is None else reached_at for reached_at, spent in theirs) / len(theirs)
        at_least = "at least " * any(reached_at is None for reached_at, _ in theirs)
        alone = sum(single[: len(theirs)]) / len(theirs)
        each, single_target = bound / (found / len(x)), bound / alone
        print(f"  ratio: {at_least}{each:.0f} x per target, {at_least}{single_target:.0f} x for one target alone")


def presets(options: argparse.Namespace) -> None:
    """Breaching's presets with as many iterations as fit into the time that `standard` took, and into ten times that."""
    with breaching() as package:
        for dataset, case in AGAINST:
            x, y, seen, task = scene(case, dataset, options.targets, options.first, options.network)
            public = Public(*data.load(dataset).train.at(slice(0, PUBLIC)))
            attack = Standard().taught(Standard().learn(task, seen[0], public, generator(0, "bench")))
            began = time.process_time()
            ours = scored(attack(seen, task, options.network).x, x)[0]
            each = (time.process_time() - began) / len(x)
            words = f"standard {ours.mean():.1f} ± {half(ours):.1f} dB, {each:.1f} s per target"
            print(f"{dataset} {case.model} batch {case.examples}: {words}", flush=True)
            for name in PRESETS:
                for times in (1, 10):
                    row(package, name, times, each, options.theirs, x, y, seen, task)


def row(package: Any, name: str, times: int, each: float, number: int, x: Tensor, y: Tensor, seen: Any, task: Task) -> None:
    """One preset on the first targets."""
    try:
        began = time.process_time()
        preset(package, name, seen[0], y[0], task, iterations=20)
        iterations = max(1, int(20 * times * each / (time.process_time() - began)))
        began = time.process_time()
        found = torch.cat([preset(package, name, seen[i], y[i], task, iterations=iterations) for i in range(number)])
    except Exception as error:  # somebody else's code on other networks than its own
        print(f"    {name:22} {times:2} x: {type(error).__name__}: {str(error)[:80]}", flush=True)
        return
    spent, values = (time.process_time() - began) / number, scored(found, x[:number])[0]
    words = f"{values.mean():5.1f} ± {half(values):.1f} dB, {iterations} iterations, {spent:.1f} s"
    print(f"    {name:22} {times:2} x: {words}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["suite", "time", "presets"])
    parser.add_argument("--targets", type=int, default=16)
    parser.add_argument("--theirs", type=int, default=4, help="targets that breaching attacks, one after the other")
    parser.add_argument("--seconds", type=float, default=120.0, help="that breaching gets per target to reach the goal")
    parser.add_argument("--first", type=int, default=7000, help="first test image; settings were chosen on others")
    parser.add_argument("--network", type=int, default=77, help="seed of the weights; settings were chosen on seed 1")
    parser.add_argument("--only", default="", help="rows of the suite that contain this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    {"suite": suite, "time": to_goal, "presets": presets}[options.what](options)


if __name__ == "__main__":
    main()
