"""A multilayer perceptron: fully connected layers on the pixels, the model of SPEAR (Dimitrov et al. 2024)."""

from math import prod
from typing import Annotated

from pydantic import Field
from torch import nn

from fl_app.models.layers import Activation, Shape, activation_layer

Widths = Annotated[tuple[Annotated[int, Field(ge=1, le=65536)], ...], Field(min_length=1, max_length=64)]


def mlp(input_shape: Shape, num_classes: int, *, hidden: Widths = (200, 100), activation: Activation = "relu") -> nn.Module:
    """MLP: fully connected layers of the widths `hidden` with an activation behind each, and one per class."""
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    before = prod(input_shape)
    for i, width in enumerate(hidden, 1):
        model.add_module(f"fc{i}", nn.Linear(before, width))
        model.add_module(f"act{i}", activation_layer(activation))
        before = width
    model.add_module("head", nn.Linear(before, num_classes))
    return model
