"""ResNets of basic blocks (He et al. 2016) with the variations that the papers use."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from pydantic import Field
from torch import nn

from fl_app.models.layers import Activation, Norm, Shape, activation_layer, norm_layer

Width = Annotated[int, Field(ge=2, le=1024)]
"""Channels of the first stage; each of the others has twice as many as the one before."""


def _resnet(
    blocks: list[int], input_shape: Shape, num_classes: int, activation: Activation, norm: Norm, width: int
) -> nn.Module:
    return resnet_of(blocks, input_shape, num_classes, activation, partial(norm_layer, norm), width)


def resnet_of(
    blocks: list[int],
    input_shape: Shape,
    num_classes: int,
    activation: Activation,
    make_norm: Callable[[int], nn.Module],
    width: int = 64,
    *,
    kind: str = "BasicBlock",
) -> nn.Module:
    """A ResNet of so many of torchvision's blocks of a kind in its stages."""
    from fl_app.core.vision import torchvision  # a third of what a client imports, and most models need none of it

    block = getattr(torchvision.models.resnet, kind)
    model: nn.Module = torchvision.models.ResNet(block, blocks, num_classes=num_classes, norm_layer=make_norm)
    channels, height, _ = input_shape
    if width != 64:  # torchvision's own is 64 wide
        _rescale(model, blocks, width, make_norm, num_classes)
    if height < 128:  # small images keep their resolution in the stem, as is usual for CIFAR
        model.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    elif channels != 3 or width != 64:
        model.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
    for module in model.modules():
        if hasattr(module, "relu"):
            module.relu = activation_layer(activation)
    return model


def _rescale(model: Any, blocks: list[int], width: int, make_norm: Callable[..., nn.Module], num_classes: int) -> None:
    """Give torchvision's ResNet another width, behind its first convolution."""
    block, model.inplanes, model.bn1 = type(model.layer1[0]), width, make_norm(width)
    for place, number in enumerate(blocks):
        layer = model._make_layer(block, width << place, number, stride=min(2, 1 + place))
        for module in layer.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")  # as torchvision does
        setattr(model, f"layer{place + 1}", layer)
    model.fc = nn.Linear(8 * width, num_classes)


def resnet10(
    input_shape: Shape, num_classes: int, *, activation: Activation = "relu", norm: Norm = "batch", width: Width = 64
) -> nn.Module:
    """ResNet-10: one basic block per stage; a 3x3 stem below 128 px, the 7x7 one above."""
    return _resnet([1, 1, 1, 1], input_shape, num_classes, activation, norm, width)


def resnet18(
    input_shape: Shape, num_classes: int, *, activation: Activation = "relu", norm: Norm = "batch", width: Width = 64
) -> nn.Module:
    """ResNet-18: two basic blocks per stage; a 3x3 stem below 128 px, the 7x7 one above."""
    return _resnet([2, 2, 2, 2], input_shape, num_classes, activation, norm, width)


def resnet34(
    input_shape: Shape, num_classes: int, *, activation: Activation = "relu", norm: Norm = "batch", width: Width = 64
) -> nn.Module:
    """ResNet-34: 3, 4, 6 and 3 basic blocks; a 3x3 stem below 128 px, the 7x7 one above."""
    return _resnet([3, 4, 6, 3], input_shape, num_classes, activation, norm, width)
