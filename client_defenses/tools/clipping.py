"""The size of a whole gradient, and its bound."""

import torch
from torch import Tensor

from fl_app.core.local import Tensors


def total_norm(grads: Tensors) -> Tensor:
    """The L2 norm of all tensors as one vector, a float32 scalar."""
    if not grads:
        return torch.zeros(())
    # The square root has no derivative at zero, and an attack differentiates this.
    return torch.stack([value.float().square().sum() for value in grads.values()]).sum().clamp_min(1e-30).sqrt()


def clip(grads: Tensors, bound: float) -> Tensors:
    """The gradient over max(1, norm / bound), so of norm at most `bound`; differentiable."""
    factor = 1 / torch.clamp(total_norm(grads) / bound, min=1)
    return {name: value * factor.to(value) for name, value in grads.items()}
