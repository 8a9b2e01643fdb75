"""Generators learned from public images: the decoder of a class-conditional VAE, and what it can draw at best."""

import itertools
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR

from fl_app.core.spec import Checked
from fl_app.models.generator import SLOPE, Design, Generator, build

KEPT = 0.999
"""Of the mean of the weights over steps, which is what is kept of a training."""
FILTERS = (32, 64, 128)
"""Of the encoder's convolutions, each of which halves the size."""
CEILING_STEPS, CEILING_RATE = 500, 0.1
"""Of the search for the code of an image in its pixels."""
CHUNK = 64
Steps = Annotated[int, Field(ge=1, le=10**7)]


@dataclass(frozen=True, kw_only=True)
class GeneratorTraining(Checked):
    """How a generator learns."""

    steps: Steps = 2400
    """Of the VAE."""
    adversarial: Annotated[int, Field(ge=0, le=10**7)] = 0
    """Steps of fine-tuning against a critic, after the VAE."""
    batch_size: Steps = 128
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Adam's, at the start; it falls to zero along a cosine."""
    spread: Annotated[float, Field(gt=0)] = 0.1
    """Standard deviation of pixels about what the decoder draws: smaller ones weigh pixels more and the law of codes less."""
    seed: Annotated[int, Field(ge=0)] = 0


class Encoder(nn.Module):
    """(images, classes) -> means and log variances of their codes."""

    def __init__(self, design: Design) -> None:
        super().__init__()
        channels = (design.shape[0], *FILTERS)
        pairs = itertools.pairwise(channels)
        self.convs = nn.ModuleList(nn.Conv2d(before, after, 4, stride=2, padding=1) for before, after in pairs)
        height, width = (side // 2 ** len(FILTERS) for side in design.shape[1:])
        self.last = nn.Linear(FILTERS[-1] * max(1, height) * max(1, width) + design.classes, 2 * design.latent)
        self.size = max(1, height), max(1, width)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Both (n, latent)."""
        for conv in self.convs:
            x = F.leaky_relu(conv(x), SLOPE)
        mean, log_variance = self.last(torch.cat([x.flatten(1), y], dim=1)).chunk(2, dim=1)
        return mean, log_variance


class Batches:
    """Batches of public images x, uint8 (n, *shape) or floats in [0, 1], with classes as shares (n, classes), for ever."""

    def __init__(self, x: Tensor, y: Tensor, classes: int, size: int, rng: torch.Generator) -> None:
        self.x, self.y, self.classes, self.size, self.rng = x, y, classes, size, rng
        self._order = torch.empty(0, dtype=torch.int64)

    def draw(self) -> tuple[Tensor, Tensor]:
        """The next batch."""
        if not len(self._order):
            self._order = torch.randperm(len(self.x), generator=self.rng)
        chosen, self._order = self._order[: self.size], self._order[self.size :]
        return unit(self.x[chosen]), shares(self.y[chosen], self.classes)


def unit(x: Tensor) -> Tensor:
    """Images as floats in [0, 1]."""
    return x.float().div(255) if x.dtype == torch.uint8 else x.float()


def shares(y: Tensor, classes: int) -> Tensor:
    """Classes int64 (...) as shares of each (..., classes); nothing (..., 0) of a generator that knows of none."""
    return F.one_hot(y, classes).float() if classes else y.new_zeros((*y.shape, 0), dtype=torch.float32)


def trained(
    x: Tensor, y: Tensor, design: Design, training: GeneratorTraining, on_step: Callable[[], None] = lambda: None
) -> Generator:
    """The decoder of a VAE (Kingma and Welling 2014) of public images, its weights averaged over steps, perhaps fine-tuned."""
    rng = torch.Generator().manual_seed(training.seed)
    batches = Batches(x, y, design.classes, training.batch_size, rng)
    decoder = build(design, training.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed + 1)
        encoder = Encoder(design)
    mean = deepcopy(decoder).requires_grad_(False)
    optimizer = torch.optim.Adam([*decoder.parameters(), *encoder.parameters()], lr=training.lr)
    schedule = CosineAnnealingLR(optimizer, training.steps)
    for step in range(training.steps):
        images, classes = batches.draw()
        middle, log_variance = encoder(images, classes)
        noise = torch.randn(middle.shape, generator=rng)
        drawn = decoder(middle + (log_variance / 2).exp() * noise, classes)
        missed = (drawn - images).square().sum() / (2 * training.spread**2)
        surplus = -0.5 * (1 + log_variance - middle.square() - log_variance.exp()).sum()
        optimizer.zero_grad()
        ((missed + surplus) / len(images)).backward()
        optimizer.step()
        schedule.step()
        average(mean, decoder, step)
        on_step()
    if training.adversarial:
        from adversary.learned.adversarial import fine_tuned

        mean = fine_tuned(mean, encoder, batches, training, on_step)
    return mean.eval().requires_grad_(False)


def average(mean: nn.Module, now: nn.Module, step: int) -> None:
    """Move the mean of the weights towards those of a step; at first by larger shares, so that the start is forgotten."""
    share = min(KEPT, (1 + step) / (10 + step))
    with torch.no_grad():
        for kept, new in zip(mean.parameters(), now.parameters(), strict=True):
            kept.lerp_(new, 1 - share)


def ceiling(generator: Generator, x: Tensor, y: Tensor, steps: int = CEILING_STEPS) -> Tensor:
    """The PSNR (n,) of the best that is found for each image when its pixels are known: what no search in codes can pass.

    Codes start from 0, and Adam's rate falls along a cosine.
    """
    found = []
    for images, classes in zip(unit(x).split(CHUNK), shares(y, generator.design.classes).split(CHUNK), strict=True):
        z = torch.zeros(len(images), generator.design.latent, requires_grad=True)
        optimizer = torch.optim.Adam([z], lr=CEILING_RATE)
        schedule = CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            (gradient,) = torch.autograd.grad((generator(z, classes) - images).square().sum(), z)
            z.grad = gradient
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            found.append(-10 * (generator(z, classes) - images).square().flatten(1).mean(1).clamp_min(1e-10).log10())
    return torch.cat(found)
