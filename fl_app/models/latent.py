"""Encoder and predictor of "Learnable Data Perturbation" (Jiang et al., Table I), which is ConvNet-64 without BatchNorm."""

from collections import OrderedDict
from typing import Annotated

from pydantic import Field
from torch import nn

from fl_app.models.convnet import class_layer, convolutions
from fl_app.models.layers import Activation, Shape


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
    encoder = convolutions(input_shape, width, activation, None, {5: "pool"})
    layer = class_layer(input_shape, width, num_classes)
    predictor = OrderedDict(pool=nn.MaxPool2d(3), flatten=nn.Flatten(), fc=layer)
    return nn.Sequential(OrderedDict(encoder=encoder, predictor=nn.Sequential(predictor)))
