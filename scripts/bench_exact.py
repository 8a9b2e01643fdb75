#!/usr/bin/env python
"""Exact attacks on honest servers: how often they prove their answer, how exact it is, how long it takes.

    .venv/bin/python scripts/bench_exact.py spear --examples 8         # mlp, MNIST and CIFAR-10, float32 and float64
    .venv/bin/python scripts/bench_exact.py spear --examples 20 --batches 2 --threads 2
    .venv/bin/python scripts/bench_exact.py closed                     # readout at batch 1, patches at 1, 2, 4, 8
    .venv/bin/python scripts/bench_exact.py features --examples 8      # LeNet-5, CIFAR-10: spear against matching alone
    .venv/bin/python scripts/bench_exact.py mixed                      # cocktail_party where spear is excluded

Test images, a network of its own seed for each batch, normalised as `thorns run` does. Settings were chosen on images from
5,000 on with other networks; those scored start at 0. Labels are inferred.
"""

import argparse
import time
from typing import NamedTuple

import torch
from torch import Tensor

import adversary
from adversary import Guess, Public
from fl_app import data, models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Images
from fl_app.scoring.images import ssim
from fl_app.scoring.matching import match

PUBLIC = 4000


class Scene(NamedTuple):
    """One batch of test images and what the server sees of it."""

    x: Tensor
    y: Tensor
    seen: Observation
    task: Task


def scene(model: str, dataset: str, examples: int, place: int, dtype: torch.dtype = torch.float32) -> Scene:
    """The batch at a place among the test images, with a network of its own."""
    source = data.load(dataset)
    net = models.build(model, source.input_shape, 10, seed=place, normalize=(source.mean, source.std)).to(dtype)
    x, y = source.test.at(slice(place * examples, (place + 1) * examples))
    params, rule = models.parameters_of(net), LocalRule(batch_size=examples)
    update = local_update(net, params, x.to(dtype), y, rule)
    seen = Observation(params=params, update=update, rule=rule, num_examples=examples, server_round=1, client=place)
    return Scene(x.to(dtype), y, seen, Task(net, Images(source.input_shape), 10))


class Row(NamedTuple):
    """PSNR and SSIM of each image, share of right labels, the loss, and seconds."""

    db: Tensor
    ssim: Tensor
    labels: float
    loss: float
    seconds: float


def attacked(text: str, at: Scene, public: Public | None = None) -> Row:
    """Run an attack on a scene, with what it learns from public examples if it does."""
    attack = adversary.build(text)
    began = time.perf_counter()
    if attack.trained and public is not None:
        attack = attack.taught(attack.learn(at.task, at.seen, public, torch.Generator().manual_seed(0)))
    guess = attack([at.seen], at.task, 0)
    seconds = time.perf_counter() - began
    assert isinstance(guess, Guess)
    order = match(guess.x[0].float(), at.x.float())
    x = guess.x[0][order]
    error = (x.double() - at.x.double()).square().flatten(1).mean(1)
    right = (guess.y[0][order] == at.y).float().mean().item()
    exact = -10 * error.clamp_min(1e-32).log10()
    return Row(exact, ssim(x.float(), at.x.float()), right, guess.loss[0].item(), seconds)


def say(name: str, rows: list[Row]) -> None:
    """Print a line over batches, with a 95 % interval of the mean PSNR of a batch."""
    means = torch.stack([row.db.mean() for row in rows])
    half = 1.96 * means.std().item() / len(rows) ** 0.5 if len(rows) > 1 else float("nan")
    proved = sum(row.loss == 0 for row in rows)
    print(
        f"  {name:52} {len(rows):3} batches, proved {proved:3}, PSNR {means.mean():6.2f} +- {half:5.2f} dB "
        f"(least {min(row.db.min().item() for row in rows):6.1f}), SSIM {torch.cat([row.ssim for row in rows]).mean():.3f}, "
        f"labels {sum(row.labels for row in rows) / len(rows):.3f}, {sum(row.seconds for row in rows) / len(rows):6.1f} s",
        flush=True,
    )


def spear(examples: int, batches: int) -> None:
    for dataset in ("mnist", "cifar10"):
        for dtype in (torch.float32, torch.float64):
            number = batches if dtype is torch.float32 else max(1, batches // 10)
            rows = [attacked("spear", scene("mlp", dataset, examples, place, dtype)) for place in range(number)]
            say(f"mlp, {dataset}, batch {examples}, {dtype}", rows)


def closed(batches: int) -> None:
    for model, dataset in (("mlp", "mnist"), ("mlp", "cifar10"), ("linear", "cifar10")):
        say(f"readout, {model}, {dataset}, batch 1", [attacked("readout", scene(model, dataset, 1, i)) for i in range(batches)])
    for examples in (2, 4, 8):
        name = f"readout, linear, cifar10, batch {examples}"
        say(name, [attacked("readout", scene("linear", "cifar10", examples, i)) for i in range(batches)])
    for examples in (1, 2, 4, 8):
        rows = [attacked("patches", scene("vit", "cifar10", examples, i)) for i in range(min(batches, 10))]
        best = torch.stack([row.db.max() for row in rows]).mean()
        residual = sum(row.loss for row in rows) / len(rows)
        say(f"patches, vit, cifar10, batch {examples}", rows)
        print(f"    residual {residual:.1e}, nearest example of a batch {best:.1f} dB")


def features(examples: int, batches: int, iterations: int, model: str) -> None:
    public = Public(*data.load("cifar10").train.at(slice(0, PUBLIC)))
    print(f"{model}, CIFAR-10, batch {examples}; public: {PUBLIC} training images")
    scenes = [scene(model, "cifar10", examples, place) for place in range(batches)]
    for text in ("spear(public=True)", "spear", f"inverting_gradients(iterations={iterations})"):
        say(text, [attacked(text, at, public) for at in scenes])


def mixed(batches: int) -> None:
    for text, model, examples in (
        ("cocktail_party", "mlp(activation='sigmoid')", 8),
        ("cocktail_party", "mlp(hidden=[400])", 32),
        ("cocktail_party", "mlp(hidden=[400])", 64),
    ):
        say(
            f"{text}, {model}, cifar10, batch {examples}",
            [attacked(text, scene(model, "cifar10", examples, i)) for i in range(batches)],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["spear", "closed", "features", "mixed"])
    parser.add_argument("--examples", type=int, default=8)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=2000, help="of matching alone")
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.what == "spear":
        spear(options.examples, options.batches)
    elif options.what == "closed":
        closed(options.batches)
    elif options.what == "features":
        features(options.examples, options.batches, options.iterations, options.model)
    else:
        mixed(options.batches)


if __name__ == "__main__":
    main()
