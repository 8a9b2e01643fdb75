"""ResNets of basic blocks (He et al. 2016) with the variations that the papers use."""

from collections.abc import Callable
from functools import partial

from torch import nn

from fl_app.models.layers import Activation, Norm, Shape, activation_layer, norm_layer


def _resnet(blocks: list[int], input_shape: Shape, num_classes: int, activation: Activation, norm: Norm) -> nn.Module:
    from fl_app.core.vision import torchvision  # a third of what a client imports, and most models need none of it

    make_norm: Callable[..., nn.Module] = partial(norm_layer, norm)
    model: nn.Module = torchvision.models.ResNet(
        torchvision.models.resnet.BasicBlock, blocks, num_classes=num_classes, norm_layer=make_norm
    )
    channels, height, _ = input_shape
    if height < 128:  # small images keep their resolution in the stem, as is usual for CIFAR
        model.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    elif channels != 3:
        model.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    for module in model.modules():
        if hasattr(module, "relu"):
            module.relu = activation_layer(activation)
    return model


def resnet10(input_shape: Shape, num_classes: int, *, activation: Activation = "relu", norm: Norm = "batch") -> nn.Module:
    """ResNet-10: one basic block per stage; a 3x3 stem below 128 px, the 7x7 one above."""
    return _resnet([1, 1, 1, 1], input_shape, num_classes, activation, norm)


def resnet18(input_shape: Shape, num_classes: int, *, activation: Activation = "relu", norm: Norm = "batch") -> nn.Module:
    """ResNet-18: two basic blocks per stage; a 3x3 stem below 128 px, the 7x7 one above."""
    return _resnet([2, 2, 2, 2], input_shape, num_classes, activation, norm)


def resnet34(input_shape: Shape, num_classes: int, *, activation: Activation = "relu", norm: Norm = "batch") -> nn.Module:
    """ResNet-34: 3, 4, 6 and 3 basic blocks; a 3x3 stem below 128 px, the 7x7 one above."""
    return _resnet([3, 4, 6, 3], input_shape, num_classes, activation, norm)
