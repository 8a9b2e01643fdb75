"""LeNet of "Deep Leakage from Gradients" (Zhu et al. 2019), and LeNet-5."""

from math import ceil
from typing import Literal

from torch import nn

from fl_app.models.layers import Activation, Shape, activation_layer


def lenet(
    input_shape: Shape,
    num_classes: int,
    *,
    activation: Activation = "sigmoid",
    init: Literal["uniform", "default"] = "uniform",
) -> nn.Module:
    """LeNet of DLG: three 5x5 convolutions of 12 channels, one linear layer; weights and biases from U(-0.5, 0.5)."""
    channels, height, width = input_shape
    features = 12 * ceil(ceil(height / 2) / 2) * ceil(ceil(width / 2) / 2)
    model = nn.Sequential()
    model.add_module("conv1", nn.Conv2d(channels, 12, 5, stride=2, padding=2))
    model.add_module("act1", activation_layer(activation))
    model.add_module("conv2", nn.Conv2d(12, 12, 5, stride=2, padding=2))
    model.add_module("act2", activation_layer(activation))
    model.add_module("conv3", nn.Conv2d(12, 12, 5, stride=1, padding=2))
    model.add_module("act3", activation_layer(activation))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(features, num_classes))
    if init == "uniform":
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def lenet5(input_shape: Shape, num_classes: int, *, activation: Activation = "relu") -> nn.Module:
    """LeNet-5: two convolutions with max pooling, three linear layers; any input of at least 16 x 16."""
    channels, height, width = input_shape
    if min(height, width) < 16:
        raise ValueError(f"lenet5 needs images of at least 16 x 16 pixels, not {height} x {width}")
    padding = 2 if height == 28 else 0  # the original pads MNIST to 32 x 32
    features = 16 * (((height + 2 * padding - 4) // 2 - 4) // 2) * (((width + 2 * padding - 4) // 2 - 4) // 2)
    model = nn.Sequential()
    model.add_module("conv1", nn.Conv2d(channels, 6, 5, padding=padding))
    model.add_module("act1", activation_layer(activation))
    model.add_module("pool1", nn.MaxPool2d(2))
    model.add_module("conv2", nn.Conv2d(6, 16, 5))
    model.add_module("act2", activation_layer(activation))
    model.add_module("pool2", nn.MaxPool2d(2))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc1", nn.Linear(features, 120))
    model.add_module("act3", activation_layer(activation))
    model.add_module("fc2", nn.Linear(120, 84))
    model.add_module("act4", activation_layer(activation))
    model.add_module("fc3", nn.Linear(84, num_classes))
    return model
