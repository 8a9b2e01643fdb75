#!/usr/bin/env python
"""Attacks that learn and denoisers of updates: LeNet on CIFAR-10, single updates, with 95 % intervals over targets.

    .venv/bin/python scripts/bench_learned.py lti                          # against who searches, undefended and under defenses
    .venv/bin/python scripts/bench_learned.py lti --only sign --network 77,78
    .venv/bin/python scripts/bench_learned.py denoisers                    # cosine to the true gradient, and PSNR
    .venv/bin/python scripts/bench_learned.py fgla                         # batches of 8, as they come
    .venv/bin/python scripts/bench_learned.py lti --first 30000 --network 3    # where settings were chosen

Targets are training images; public examples are test images, as in a run. Labels are inferred. A row that is in the file of
--resume is not measured again, so that a measurement that was broken off goes on.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from scipy.special import stdtrit
from torch import Tensor

import adversary
import client_defenses
from adversary import Attack, AttackError, Facts, Guess, Public
from adversary.denoise import Diffusion, LinearGaussian
from client_defenses import Memory
from fl_app import data, models
from fl_app.core.local import LocalRule, Step
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.seeds import derive, generator
from fl_app.core.space import Images
from fl_app.data.splits import PUBLIC
from fl_app.scoring.images import psnr, ssim
from fl_app.scoring.matching import match

DEFENSES = (
    "none",
    "dp_gaussian(scale=0.1, clip=None)",
    "sign",
    "prune(ratio=0.99)",
    "gradient_dropout(p=0.6)",
)
SEARCHES = ("cosine_lbfgs(iterations=1000, tv=0.01)", "inverting_gradients(iterations=1000)")
NOISES = (0.01, 0.03, 0.1)
SEARCH = "cosine_lbfgs(iterations=500, tv=0.03)"


def scene(spec: str, network: int, first: int, targets: int, size: int, model: str) -> tuple[Tensor, list[Observation], Task]:
    """(x (targets, size, *shape), what the server saw, the public facts)."""
    source = data.load("cifar10")
    net = models.build(model, source.input_shape, source.num_classes, seed=network)
    params, defense, rule = models.parameters_of(net), client_defenses.build(spec), LocalRule(batch_size=size)
    x, y = source.train.at(slice(first, first + targets * size))
    x, y = x.view(targets, size, *source.input_shape), y.view(targets, size)
    known = Knowledge(defense=None if spec == "none" else spec, public=True)
    seen = []
    for client in range(targets):
        memory = Memory({}, torch.Generator().manual_seed(derive(network, "bench", client)))
        update = defense.protect(Step(params, net, x[client], y[client]), memory)
        seen.append(
            Observation(
                params=params, update=update, rule=rule, num_examples=size, server_round=1, client=client, knowledge=known
            )
        )
    return x, seen, Task(net, Images(source.input_shape), source.num_classes)


def public_for(attack: Attack) -> Public:
    """What a run would give it."""
    return Public(*data.load("cifar10").test.at(slice(0, max(PUBLIC, attack.public_wanted))))


def shown(values: Tensor, digits: int) -> str:
    """A mean with its 95 % interval."""
    if len(values) < 2:
        return f"{values.mean():.{digits}f}"
    half = stdtrit(len(values) - 1, 0.975) * values.std().item() / math.sqrt(len(values))
    return f"{values.mean():.{digits}f} ± {half:.{digits}f}"


class Rows:
    """Prints what is measured, and keeps it in a file."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.known = {tuple(line["row"]): line for line in map(json.loads, lines)}

    def has(self, *row: object) -> bool:
        """Whether a row was measured before; then it is printed."""
        found = self.known.get(tuple(map(str, row)))
        if found:
            print(f"    {row[-1]:44} {found['text']}   (before)", flush=True)
        return found is not None

    def add(self, row: tuple[object, ...], text: str, values: dict[str, list[float]]) -> None:
        """Print and keep a row."""
        print(f"    {row[-1]:44} {text}", flush=True)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"row": list(map(str, row)), "text": text, **values}) + "\n")


def measured(
    attack: Attack, x: Tensor, seen: list[Observation], task: Task, network: int
) -> tuple[str, dict[str, list[float]]]:
    """PSNR and SSIM of an attack as words and numbers; the reason where it cannot be run."""
    began = time.process_time()
    try:
        if attack.trained:
            attack = attack.taught(attack.learn(task, seen[0], public_for(attack), generator(network, "bench")))
        learned = time.process_time() - began
        guess = attack(seen, task, network)
    except AttackError as error:
        return str(error), {}
    assert isinstance(guess, Guess)
    spent = time.process_time() - began
    pairs = [(own[match(own, true)], true) for own, true in zip(guess.x, x, strict=True)]
    quality = torch.stack([psnr(a, b).mean() for a, b in pairs])
    likeness = torch.stack([ssim(a, b).mean() for a, b in pairs])
    words = f"{shown(quality, 1):>12} dB   SSIM {shown(likeness, 2):>12}   {learned:5.0f} s learning, {spent - learned:5.0f} s"
    return words + (f"   {guess.remark}" if guess.remark else ""), {"psnr": quality.tolist(), "ssim": likeness.tolist()}


def attackers(spec: str, lti: str) -> Iterator[tuple[str, Attack]]:
    """All that are compared under a defense."""
    yield "lti", adversary.build(lti)
    yield "ridge", adversary.build("ridge")
    facts = Facts(examples=1, public=PUBLIC)
    for text in SEARCHES:
        naive = adversary.build(text)
        name = text.partition("(")[0]
        yield name, naive
        for one in naive.informed(spec, facts) if spec != "none" else []:
            if one.attack is not None and one.name != "ridge":
                yield f"{name}: {one.name or 'informed'}", one.attack


def lti(options: argparse.Namespace, rows: Rows) -> None:
    """LTI against those who search and ridge."""
    for network in options.network:
        for spec in DEFENSES:
            if options.only not in spec:
                continue
            print(f"  {spec}, network seed {network}, {options.targets} targets from {options.first}")
            x, seen, task = scene(spec, network, options.first, options.targets, 1, options.model)
            done = set[str]()
            for name, attack in attackers(spec, options.lti):
                text = adversary.text_of(attack)
                if (options.attacker and options.attacker not in name) or text in done:
                    continue
                done.add(text)
                row = ("lti", options.model, options.first, options.targets, network, spec, name)
                if not rows.has(*row):
                    told = seen if ":" in name or attack.at_weights else _untold(seen)
                    rows.add(row, *measured(attack, x, told, task, network))


def _untold(seen: list[Observation]) -> list[Observation]:
    return [replace(one, knowledge=replace(one.knowledge, defense=None)) for one in seen]


def denoisers(options: argparse.Namespace, rows: Rows) -> None:
    """The cosine of denoised updates to the true ones, and the search in them."""
    cases = [(f"dp_gaussian(scale={noise}, clip=None)", noise) for noise in NOISES]
    cases += [("gradient_dropout(p=0.6)", 0.0), ("gradient_dropout(p=0.6, sigma='match')", 0.0), ("mask(ratio=0.5)", 0.0)]
    for network in options.network:
        for spec, noise in cases:
            if options.only not in spec:
                continue
            print(f"  {spec}, network seed {network}, {options.targets} targets from {options.first}")
            x, seen, task = scene(spec, network, options.first, options.targets, 1, options.model)
            _, clean, _ = scene("none", network, options.first, options.targets, 1, options.model)
            search = adversary.build(SEARCH)
            told = {one.name: one.attack for one in search.informed(spec, Facts(examples=1, public=PUBLIC))}
            found: dict[str, Attack | None] = {"not denoised": search, **told}
            if noise:
                found["mjolnir"] = adversary.build(
                    f"mjolnir(noise={noise}, training={options.training}, iterations=500, tv=0.03)"
                )
            for name, attack in found.items():
                if attack is None or name == "ridge" or (options.attacker and options.attacker not in name):
                    continue
                row = ("denoisers", options.model, options.first, options.targets, network, spec, name or "informed")
                if rows.has(*row):
                    continue
                words, values = measured(attack, x, seen, task, network)
                cosines = _cosines(attack, seen, clean, task, network)
                if cosines is not None:
                    words += f"   cosine {shown(cosines, 3)}"
                    values["cosine"] = cosines.tolist()
                rows.add(row, words, values)


def _cosines(attack: Attack, seen: list[Observation], clean: list[Observation], task: Task, network: int) -> Tensor | None:
    """The cosines of what a search looks at to the true gradients."""
    matching = getattr(attack, "matching", lambda: attack)()
    updates = [one.update for one in seen]
    for denoiser in getattr(matching, "denoisers", ()):
        assert isinstance(denoiser, LinearGaussian | Diffusion)
        learned = denoiser.learn(task, seen[0], public_for(attack), generator(network, "bench"))
        updates = denoiser.cleaned(learned, seen, [torch.Generator() for _ in seen])
    flat = [torch.cat([value.flatten() for value in one.values()]) for one in updates]
    true = [torch.cat([value.flatten() for value in one.update.values()]) for one in clean]
    return torch.cosine_similarity(torch.stack(flat), torch.stack(true))


def fgla(options: argparse.Namespace, rows: Rows) -> None:
    """FGLA on batches."""
    for network in options.network:
        x, seen, task = scene("none", network, options.first, options.targets, 8, options.model)
        print(f"  none, batch 8, network seed {network}, {options.targets} targets from {options.first}")
        for name in ("fgla", "gauss_newton(iterations=60)"):
            row = ("fgla", options.model, options.first, options.targets, network, "none", name)
            if options.attacker in name and not rows.has(*row):
                rows.add(row, *measured(adversary.build(name), x, seen, task, network))


PARTS = {"lti": lti, "denoisers": denoisers, "fgla": fgla}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--network", default="77", help="seeds of the weights, with commas; settings were chosen on 3")
    parser.add_argument("--targets", type=int, default=16)
    parser.add_argument(
        "--first", type=int, default=7000, help="first training image; settings were chosen on those from 30,000"
    )
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--only", default="", help="defenses whose spec contains this")
    parser.add_argument("--attacker", default="", help="attackers whose name contains this")
    parser.add_argument("--lti", default="lti", help="the spec of lti")
    parser.add_argument("--training", type=int, default=1500, help="steps of the diffusion's training")
    parser.add_argument("--resume", type=Path, help="a file of rows that were measured, which is added to")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    options.network = [int(one) for one in options.network.split(",")]
    torch.set_num_threads(options.threads)
    print(f"{options.part}: CIFAR-10, {options.model}, single rounds, labels inferred; seconds are CPU seconds", flush=True)
    PARTS[options.part](options, Rows(options.resume))


if __name__ == "__main__":
    main()
