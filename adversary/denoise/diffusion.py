"""Mjolnir's denoiser (Liu et al. 2025): a diffusion model of clean updates, entered where its noise is that of the update."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call

from adversary.base import AttackError, Public
from adversary.denoise.base import Denoiser
from adversary.denoise.clean import TINY, as_updates, clean_rows, rows_seen
from adversary.denoise.unet import UNet
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task

STEPS, FIRST, LAST = 1000, 1e-4, 0.02
"""The levels of DDPM (Ho et al. 2020), as in the paper."""


@dataclass(frozen=True, kw_only=True)
class Diffusion(Denoiser):
    """DDPM on updates of public examples; from the level whose noise was observed down to none, through each level's estimate.

    An update with noise of variance M², in units of the clean ones, times sqrt(n) with n = 1 / (1 + M²), is what the model sees
    at the level whose share of signal is n (the adaptive step). Each level starts from what the level before left: the
    authors' code feeds the noisy update again each time, so that only its last level acts.
    """

    noise: Annotated[float, Field(gt=0)]
    """The standard deviation of the noise on every entry."""
    clip: Annotated[float, Field(ge=0)] = 0.0
    """The norm to which a client clips its update before the noise; 0: it does not."""
    draws: Annotated[int, Field(ge=100, le=10**6)] = 2000
    """Updates of public examples that it learns from."""
    iterations: Annotated[int, Field(ge=1, le=10**7)] = 1500
    """Steps of Adam; ours for two cores, as the paper takes 20 epochs of a network that is ten times as wide."""
    width: Annotated[int, Field(ge=1, le=1024)] = 32  # the paper: 120
    batch: Annotated[int, Field(ge=1, le=4096)] = 8
    lr: Annotated[float, Field(gt=0)] = 1e-3  # the paper: 1e-4 for many more steps
    levels: Annotated[int, Field(ge=1, le=STEPS)] = 50
    """Levels on the way down, of those that there are (ours: the paper takes each)."""

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """The weights of the U-Net, the mean and the size of clean updates."""
        rows = clean_rows(task, seen, public, self.draws, self.clip, rng)
        mean = rows.mean(0)
        rows = rows - mean
        size = rows.square().mean().sqrt().clamp_min(TINY)
        rows = rows / size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=rng)))
            net = UNet(rows.shape[1], self.width).to(rows)
        signal, optimizer = signal_of(rows), torch.optim.Adam(net.parameters(), lr=self.lr)
        for _ in range(self.iterations):
            chosen = torch.randint(len(rows), (self.batch,), generator=rng)
            level = torch.randint(STEPS, (self.batch,), generator=rng).to(rows.device)
            noise = torch.randn((self.batch, rows.shape[1]), generator=rng).to(rows)
            share = signal[level][:, None]
            optimizer.zero_grad()
            found = net(share.sqrt() * rows[chosen] + (1 - share).sqrt() * noise, level / STEPS)
            torch.nn.functional.huber_loss(found, noise).backward()
            optimizer.step()
        kept = {f"net/{name}": value.detach().clone() for name, value in net.named_parameters()}
        return {**kept, "mean": mean, "size": size}

    def cleaned(self, learned: Tensors, seen: Sequence[Observation], streams: Sequence[torch.Generator]) -> list[Tensors]:
        """The ends of the reverse walks of all targets at once, without new noise (DDIM), so that they draw nothing."""
        weights = {name.removeprefix("net/"): value for name, value in learned.items() if name.startswith("net/")}
        sent = (rows_seen(seen).to(learned["mean"]) - learned["mean"]) / learned["size"]
        if len(weights["enter.weight"]) != self.width:
            raise AttackError("what this diffusion learned is of another width: learn it anew")
        with torch.random.fork_rng(devices=[]):
            net = UNet(sent.shape[1], self.width).to(sent)
        signal = signal_of(sent)

        def predict(rows: Tensor, level: Tensor) -> Tensor:
            with torch.no_grad():
                return torch.as_tensor(functional_call(net, weights, (rows, level)))

        observed = 1 / (1 + (self.noise / float(learned["size"])) ** 2)
        found = reversed_from(sent, observed, signal, self.levels, predict)
        return as_updates(learned["mean"] + learned["size"] * found, seen[0].update)


def signal_of(like: Tensor) -> Tensor:
    """The share of signal in what each level sees, (levels,), falling."""
    return (1 - torch.linspace(FIRST, LAST, STEPS)).cumprod(0).to(like)


def reversed_from(
    sent: Tensor, observed: float, signal: Tensor, levels: int, predict: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """From rows in units of clean ones, whose share of signal was `observed`, to clean ones; `predict` finds their noise."""
    if observed > float(signal[0]):
        return sent  # less noise than the first level has
    start = int((signal > observed).sum())
    start = min(start, len(signal) - 1)
    walk = torch.linspace(start, 0, min(levels, start + 1)).round().long().unique().flip(0).tolist()
    rows = math.sqrt(observed) * sent
    clean, share = rows, observed
    for place, level in enumerate(walk):
        noise = predict(rows, torch.full((len(rows),), level / len(signal)).to(rows))
        clean = (rows - math.sqrt(1 - share) * noise) / math.sqrt(share)
        if place + 1 < len(walk):
            share = float(signal[walk[place + 1]])
            rows = math.sqrt(share) * clean + math.sqrt(1 - share) * noise
    return clean
