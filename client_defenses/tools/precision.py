"""Half-precision gradients are worked on in float32 and sent in the type they came in."""

import torch

from fl_app.core.local import Tensors


def widened(grads: Tensors) -> Tensors:
    """The same values in float32 or a wider type."""
    return {name: value.to(torch.promote_types(value.dtype, torch.float32)) for name, value in grads.items()}


def narrowed(grads: Tensors, like: Tensors) -> Tensors:
    """Rounded to the types of `like`."""
    return {name: value.to(like[name].dtype) for name, value in grads.items()}
