"""ConvNet of "Inverting Gradients" (Geiping et al. 2020), width 64 in the papers."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from torch import nn

from fl_app.models.layers import Activation, Norm, Shape, activation_layer, norm_layer

SIDE = 9
"""The least height and width: two poolings by 3."""


def convnet(
    input_shape: Shape,
    num_classes: int,
    *,
    width: Annotated[int, Field(ge=2, le=1024)] = 64,
    activation: Activation = "relu",
    norm: Norm = "batch",
) -> nn.Module:
    """ConvNet-64: nine 3x3 convolutions of width, 2 x width, 4 x width; 3x3 max pooling after the sixth and the ninth."""
    model = convolutions(input_shape, width, activation, norm, {5: "pool0", 8: "pool1"})
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", class_layer(input_shape, width, num_classes))
    return model


def convolutions(
    input_shape: Shape, width: int, activation: Activation, norm: Norm | None, pools: Mapping[int, str]
) -> nn.Sequential:
    """The nine convolutions, with a normalisation layer each unless it is None; `pools`: place -> name of the pooling after."""
    before, *sides = input_shape
    if min(sides) < SIDE:
        raise ValueError(f"it needs images of at least {SIDE} x {SIDE} pixels, not {sides[0]} x {sides[1]}")
    stack = nn.Sequential()
    for i, multiple in enumerate((1, 2, 2, 4, 4, 4, 4, 4, 4)):
        after = multiple * width
        stack.add_module(f"conv{i}", nn.Conv2d(before, after, 3, padding=1))
        if norm is not None:
            stack.add_module(f"norm{i}", norm_layer(norm, after))
        stack.add_module(f"act{i}", activation_layer(activation))
        if i in pools:
            stack.add_module(pools[i], nn.MaxPool2d(3))
        before = after
    return stack


def class_layer(input_shape: Shape, width: int, num_classes: int) -> nn.Linear:
    """The linear layer after the convolutions and both poolings."""
    _, height, side = input_shape
    return nn.Linear(4 * width * (height // SIDE) * (side // SIDE), num_classes)
