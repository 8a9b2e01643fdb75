"""Fine-tuning a decoder against a critic, so that what it draws looks sharp."""

import itertools
from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from fl_app.models.generator import SLOPE, Design, Generator

if TYPE_CHECKING:
    from adversary.learned.decoder_training import Batches, Encoder, GeneratorTraining

RATE, BETAS = 2e-4, (0.5, 0.999)
FILTERS = (32, 64, 128)
ANCHOR = 1.0
"""What the VAE's squared error per pixel, in units of its spread, counts beside the critic (ours: it keeps the ceiling)."""


class Critic(nn.Module):
    """(images, classes) -> how real they look, (n,): spectral norm, and the class by projection (Miyato et al. 2018)."""

    def __init__(self, design: Design) -> None:
        super().__init__()
        channels = (design.shape[0], *FILTERS)
        pairs = itertools.pairwise(channels)
        self.convs = nn.ModuleList(spectral_norm(nn.Conv2d(before, after, 4, 2, 1)) for before, after in pairs)
        self.real = spectral_norm(nn.Linear(FILTERS[-1], 1))
        self.of_class = nn.Linear(design.classes, FILTERS[-1], bias=False) if design.classes else None

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """One number for each image."""
        for conv in self.convs:
            x = F.leaky_relu(conv(x), SLOPE)
        features = x.mean((2, 3))
        found: Tensor = self.real(features)[:, 0]
        return found if self.of_class is None else found + (self.of_class(y) * features).sum(1)


def fine_tuned(
    decoder: Generator, encoder: "Encoder", batches: "Batches", training: "GeneratorTraining", on_step: Callable[[], None]
) -> Generator:
    """The mean of a decoder's weights over steps against a critic with hinge losses; the encoder stays as it is."""
    from adversary.learned.decoder_training import average

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed + 2)
        critic = Critic(decoder.design)
    decoder = deepcopy(decoder).requires_grad_(True)
    mean = deepcopy(decoder).requires_grad_(False)
    ours = torch.optim.Adam(decoder.parameters(), lr=RATE, betas=BETAS)
    theirs = torch.optim.Adam(critic.parameters(), lr=RATE, betas=BETAS)
    for step in range(training.adversarial):
        images, classes = batches.draw()
        z = torch.randn(len(images), decoder.design.latent, generator=batches.rng)
        drawn = decoder(z, classes)
        wrong = F.relu(1 - critic(images, classes)).mean() + F.relu(1 + critic(drawn.detach(), classes)).mean()
        theirs.zero_grad()
        wrong.backward()
        theirs.step()
        with torch.no_grad():
            middle, _ = encoder(images, classes)
        missed = (decoder(middle, classes) - images).square().mean() / (2 * training.spread**2)
        ours.zero_grad()
        (ANCHOR * missed - critic(drawn, classes).mean()).backward()
        ours.step()
        average(mean, decoder, step)
        on_step()
    return mean
