"""Code from outside the package, as people write it."""

TRACE = "from pathlib import Path\nPath('imported').touch()\n"
DEFENSE = '''
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from client_defenses import Defense


@dataclass(frozen=True, kw_only=True)
class Halve(Defense):
    """Sends a part of the gradient."""

    factor: Annotated[float, Field(gt=0)] = 0.5

    def transform(self, grads, memory):
        return {name: self.factor * value for name, value in grads.items()}

    def expected(self, grads):
        return {name: self.factor * value for name, value in grads.items()}
'''
MODEL = """
from torch import nn


def net(input_shape, num_classes, *, width: int = 4):
    channels, height, side = input_shape
    return nn.Sequential(nn.Conv2d(channels, width, 3), nn.Flatten(), nn.Linear(width * (height - 2) * (side - 2), num_classes))


def scaled(input_shape, num_classes):
    # needs the values of its weights while it is made
    model = net(input_shape, num_classes)
    model[0].weight.data /= model[0].weight.abs().max().item()
    return model


def wrong(input_shape, num_classes):
    return 3
"""
DATA = '''
import torch

from fl_app.data.base import Recipe


def stripes(*, size: int = 8):
    """Stripes of three widths."""

    def read(folder):
        y = torch.arange(60) % 3
        x = torch.stack([(torch.arange(size) // (label + 1) % 2).expand(1, size, size) * 255 for label in y.tolist()])
        return {"train_x": x.byte(), "train_y": y, "test_x": x[:12].byte(), "test_y": y[:12]}

    return Recipe(key=f"stripes-{size}", read=read, num_classes=3)


def floats():
    return Recipe(key="floats", read=lambda _: {"train_x": torch.rand(4, 1, 8, 8), "train_y": torch.ones(4)}, num_classes=2)


def impostor():
    return Recipe(key="mnist", read=lambda folder: {}, num_classes=3)
'''
