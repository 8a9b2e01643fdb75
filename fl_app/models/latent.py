"""Encoder and predictor of "Learnable Data Perturbation" (Jiang et al., Table I), which is ConvNet-64 without BatchNorm."""

from collections import OrderedDict
from typing import Annotated

from pydantic import Field
from torch import nn

from fl_app.models.layers import Activation, activation_layer
from fl_app.models.lenet import Shape


def latent_net(
    input_shape: Shape,
    num_classes: int,
    *,
    width: Annotated[int, Field(ge=1, le=1024)] = 64,
    activation: Activation = "relu",
) -> nn.Module:
    """Table I of latent perturbation: `encoder` of nine 3x3 convolutions, pooled after the sixth; `predictor`: pool, linear.

    The latent is the output of the part `encoder`: (256, 10, 10) for CIFAR-10 and (256, 9, 9) for BloodMNIST, which both give
    the printed Linear(2304, classes) if convolutions pad by 1, as in ConvNet-64. Any number of channels, 9 x 9 pixels or more.
    """
    channels, height, size = input_shape
    if min(height, size) < 9:
        raise ValueError(f"latent_net needs images of at least 9 x 9 pixels, not {height} x {size}")
    encoder = nn.Sequential()
    before = channels
    for i, multiple in enumerate((1, 2, 2, 4, 4, 4, 4, 4, 4)):
        after = multiple * width
        encoder.add_module(f"conv{i}", nn.Conv2d(before, after, 3, padding=1))
        encoder.add_module(f"act{i}", activation_layer(activation))
        if i == 5:
            encoder.add_module("pool", nn.MaxPool2d(3))
        before = after
    features = 4 * width * (height // 9) * (size // 9)
    predictor = OrderedDict(pool=nn.MaxPool2d(3), flatten=nn.Flatten(), fc=nn.Linear(features, num_classes))
    return nn.Sequential(OrderedDict(encoder=encoder, predictor=nn.Sequential(predictor)))
