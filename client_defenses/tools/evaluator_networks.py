"""How the evaluation networks of Refiner are built and trained: convolutions over an image, or over the words of a text."""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.core.spec import Checked

Shape = tuple[int, ...]
"""(channels, height, width) of images, or (length, dim + 1) of lifted words."""


@dataclass(frozen=True, kw_only=True)
class EvaluatorTraining(Checked):
    """How the network is made; the defaults are ours and take less than two minutes, `paper` gives those of the paper."""

    width: Annotated[int, Field(ge=1, le=1024)] = 32
    """Filters of the three convolutions: width, 2 width, 4 width; of the two for text: 8 width, 2 width."""
    steps: Annotated[int, Field(ge=1, le=10**8)] = 1500
    """Adam steps on one batch, each image with a share of noise of its own."""
    batch_size: Annotated[int, Field(ge=1, le=10**5)] = 128
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3e-3
    decay: bool = True
    """Let the rate rise and fall along one cycle, which a short training needs."""
    levels: Annotated[int, Field(ge=2, le=10**6)] = 11
    """The shares of noise are 0, 1 / (levels - 1), ..., 1."""
    stark: Annotated[float, Field(ge=0, le=1)] = 0.2
    """The share of images that are made almost black and white, as digits and drawings are and photos are not (ours)."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


def paper(images: int) -> EvaluatorTraining:
    """The settings of Appendix D: 128/256/512 filters, 20 epochs in which each batch is mixed 11 times, Adam 1e-4."""
    return EvaluatorTraining(width=128, steps=20 * 11 * math.ceil(images / 128), lr=1e-4, decay=False, stark=0.0)


def build_network(shape: Shape, width: int, seed: int = 0) -> nn.Module:
    """A new network, (n, *shape) -> (n, 1) in [0, 1]."""
    # torch's initialisers draw from the global generator: borrow it, and leave it as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return WordShare(shape[1] - 1, width) if len(shape) == 2 else _over_images(shape, width)


def _over_images(shape: Shape, width: int) -> nn.Module:
    """Three 3x3 convolutions of stride 2 with ReLU, one linear layer, sigmoid (Appendix D)."""
    channels, height, wide = shape
    layers = OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(channels, width, 3, stride=2, padding=1),
        act1=nn.ReLU(),
        conv2=nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        act2=nn.ReLU(),
        conv3=nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
        act3=nn.ReLU(),
        flatten=nn.Flatten(),
        fc=nn.Linear(4 * width * math.ceil(height / 8) * math.ceil(wide / 8), 1),
        share=nn.Sigmoid(),
    )
    return nn.Sequential(layers)


class WordShare(nn.Module):
    """One layer on each word and one on three neighbours, the mean over real words, a linear layer, sigmoid (ours).

    The paper has DistilBERT in its place. Word vectors count by their direction alone, so that long ones do not pass for noise.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(dim, 8 * width, 1)
        self.conv2 = nn.Conv1d(8 * width, 2 * width, 3, padding=1)
        self.fc = nn.Linear(2 * width, 1)

    def forward(self, lifted: Tensor) -> Tensor:
        """(n, length, dim + 1) -> (n, 1)."""
        keep = lifted[..., -1:].transpose(1, 2)
        x = F.layer_norm(lifted[..., :-1], (lifted.shape[-1] - 1,)).transpose(1, 2)
        x = F.relu(self.conv1(x)) * keep
        x = F.relu(self.conv2(x)) * keep
        share: Tensor = self.fc(x.sum(-1) / keep.sum(-1).clamp_min(1)).sigmoid()
        return share
