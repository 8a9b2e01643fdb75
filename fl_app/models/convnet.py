"""ConvNet of "Inverting Gradients" (Geiping et al. 2020), width 64 in the papers."""

from typing import Annotated

from pydantic import Field
from torch import nn

from fl_app.models.layers import Activation, Norm, activation_layer, norm_layer
from fl_app.models.lenet import Shape


def convnet(
    input_shape: Shape,
    num_classes: int,
    *,
    width: Annotated[int, Field(ge=2, le=1024)] = 64,
    activation: Activation = "relu",
    norm: Norm = "batch",
) -> nn.Module:
    """ConvNet-64: nine 3x3 convolutions of width, 2 x width, 4 x width; 3x3 max pooling after the sixth and the ninth."""
    channels, height, size = input_shape
    if min(height, size) < 9:
        raise ValueError(f"convnet needs images of at least 9 x 9 pixels, not {height} x {size}")
    model = nn.Sequential()
    before = channels
    for i, multiple in enumerate((1, 2, 2, 4, 4, 4, 4, 4, 4)):
        after = multiple * width
        model.add_module(f"conv{i}", nn.Conv2d(before, after, 3, padding=1))
        model.add_module(f"norm{i}", norm_layer(norm, after))
        model.add_module(f"act{i}", activation_layer(activation))
        if i in (5, 8):
            model.add_module(f"pool{i // 6}", nn.MaxPool2d(3))
        before = after
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(4 * width * (height // 9) * (size // 9), num_classes))
    return model
