"""Softmax regression: the baseline below every network."""

from math import prod

from torch import nn

from fl_app.models.layers import Shape


def linear(input_shape: Shape, num_classes: int) -> nn.Module:
    """Linear: one fully connected layer on the pixels."""
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(prod(input_shape), num_classes))
    return model
