"""The variables of a search by name: those of the space, labels, and under "0/name" what an observer does not know."""

import torch
from torch import Tensor

from fl_app.core.local import Tensors

LABELS = "labels"
"""The variable that holds the label logits, (targets, seeds, examples, classes), where labels are searched for."""


def of_space(variables: Tensors) -> Tensors:
    """The variables that stand for examples: neither labels nor what is not known of a defense."""
    return {name: value for name, value in variables.items() if name != LABELS and "/" not in name}


def of_observer(variables: Tensors, number: int) -> Tensors:
    """The variables of an observer, by its own names."""
    prefix = f"{number}/"
    return {name.removeprefix(prefix): value for name, value in variables.items() if name.startswith(prefix)}


def like(mask: Tensor, value: Tensor) -> Tensor:
    """A mask of the first dimensions in a shape that broadcasts over a value."""
    return mask.view(*mask.shape, *[1] * (value.ndim - mask.ndim))


def joined(variables: Tensors) -> Tensor:
    """Variables, each (targets, seeds, ...), as one vector per reconstruction: (targets * seeds, dimensions)."""
    return torch.cat([value.flatten(2) for value in variables.values()], dim=2).flatten(0, 1)


def parted(point: Tensor, like: Tensors) -> Tensors:
    """Such vectors as variables with the names and shapes of others."""
    parts = point.split([value[0, 0].numel() for value in like.values()], dim=1)
    return {name: part.reshape(value.shape).contiguous() for (name, value), part in zip(like.items(), parts, strict=True)}
