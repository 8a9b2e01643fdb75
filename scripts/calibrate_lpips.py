#!/usr/bin/env python
"""Where LPIPS of small images says "leak": its values on images spoiled to a known PSNR or SSIM, and on blind answers.

.venv/bin/python scripts/calibrate_lpips.py [--images 200] [--datasets mnist cifar10] [--nets alex vgg]

A limit may not call an answer a leak that never saw an update: the mean image of the class, another image of it. So it is the
largest round value that at most 5 % of their means over a few targets fall below, on every data set.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from fl_app import data
from fl_app.data.base import Dataset
from fl_app.scoring.floors import FLOORS
from fl_app.scoring.images import psnr, ssim
from fl_app.scoring.perceptual import Net, lpips_distance

Spoil = Callable[[Tensor, Tensor], Tensor]
"""(x (n, c, h, w), strength (n,) from 0 to 1) -> spoiled x."""
LEVELS = {"PSNR": (psnr, (10.0, 12.0, 15.0, 18.0, 20.0, 25.0)), "SSIM": (ssim, (0.3, 0.5, 0.7, 0.9))}
REACHED = 0.02
"""How far from the level, as a share of it, an image may be."""
FEW, DRAWS = 4, 10_000
"""Verdicts go by means over targets: so many at least, and so many means are drawn."""
WIDEST = 8.0
"""Standard deviation of the strongest blur in pixels."""


def spoils(dataset: Dataset, y: Tensor, rng: torch.Generator) -> dict[str, Spoil]:
    """Ways in which reconstructions are wrong: noise, blur, and another image of the class that shines through."""
    shape = (len(y), *dataset.input_shape)
    drawn, other = torch.randn(shape, generator=rng), FLOORS["same class"](dataset.train, y, rng, torch.tensor([0]))

    def noise(x: Tensor, strength: Tensor) -> Tensor:
        return (x + 2 * strength.view(-1, 1, 1, 1) * drawn).clamp(0, 1)

    def blur(x: Tensor, strength: Tensor) -> Tensor:
        down, across = (_gaussian(side, WIDEST * strength) for side in x.shape[2:])
        return torch.einsum("nij,ncjk,nlk->ncil", down, x, across)

    def mixed(x: Tensor, strength: Tensor) -> Tensor:
        return torch.lerp(x, other, strength.view(-1, 1, 1, 1))

    return {"noise": noise, "blur": blur, "another image mixed in": mixed}


def _gaussian(side: int, deviation: Tensor) -> Tensor:
    """Matrices (n, side, side) that blur along one side."""
    apart = torch.arange(side)[:, None] - torch.arange(side)[None]
    weights = torch.exp(-apart.square() / (2 * deviation.clamp_min(1e-3).square()).view(-1, 1, 1))
    return weights / weights.sum(2, keepdim=True)


def spoiled_to(x: Tensor, spoil: Spoil, metric: Callable[[Tensor, Tensor], Tensor], level: float) -> tuple[Tensor, Tensor]:
    """(images spoiled until the metric says `level`, which of them got there), by bisection of the strength."""
    low, high = torch.zeros(len(x)), torch.ones(len(x))
    for _ in range(20):
        middle = (low + high) / 2
        better = metric(spoil(x, middle), x) > level
        low, high = torch.where(better, middle, low), torch.where(better, high, middle)
    found = spoil(x, low).clamp(0, 1)
    return found, (metric(found, x) - level).abs() < REACHED * level


def row(name: str, values: Tensor) -> str:
    """The 5th, 50th and 95th percentile."""
    if len(values) < 10:
        return f"| {name} | - | - | - | {len(values)} |"
    shown = " | ".join(f"{value:.3f}" for value in values.quantile(torch.tensor([0.05, 0.5, 0.95]).double()).tolist())
    return f"| {name} | {shown} | {len(values)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--datasets", nargs="+", default=["mnist", "cifar10"])
    parser.add_argument("--nets", nargs="+", default=["alex", "vgg"])
    parser.add_argument("--blind", action="store_true", help="leave out the spoiled images")
    options = parser.parse_args()
    for name in options.datasets:
        dataset, rng = data.load(name), torch.Generator().manual_seed(0)
        x, y = dataset.test.at(torch.randperm(len(dataset.test), generator=rng)[: options.images])
        ways = spoils(dataset, y, rng)
        blind = {floor: make(dataset.train, y, rng, torch.tensor([0])) for floor, make in FLOORS.items()}
        for net in options.nets:
            _table(name, net, x, {} if options.blind else ways, blind)


def _table(name: str, net: Net, x: Tensor, ways: dict[str, Spoil], blind: dict[str, Tensor]) -> None:
    print(f"\n## {name}, LPIPS ({net})\n\n| images | 5 % | median | 95 % | n |\n|---|---|---|---|---|")
    for title, (metric, levels) in LEVELS.items():
        for level in levels:
            for way, spoil in ways.items():
                found, reached = spoiled_to(x, spoil, metric, level)
                print(row(f"{title} {level:g} by {way}", lpips_distance(found[reached], x[reached], net)), flush=True)
    for floor, answer in blind.items():
        values = lpips_distance(answer, x, net)
        print(row(f"blind: {floor}", values), flush=True)
        groups = torch.randint(len(values), (DRAWS, FEW), generator=torch.Generator().manual_seed(0))
        print(row(f"blind: {floor}, means over {FEW} targets", values[groups].mean(1)), flush=True)


if __name__ == "__main__":
    main()
