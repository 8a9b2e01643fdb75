"""What a classifier still sees in a reconstruction.

A model with BatchNorm uses the statistics of the batch here: give it many images at once, never one.
"""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fl_app.core.local import Tensors


@torch.no_grad()
def _logits(model: nn.Module, params: Tensors, x: Tensor) -> Tensor:
    device = next(iter(params.values())).device
    logits: Tensor = functional_call(model, params, (x.to(device),))
    return logits.double().cpu()


def sees_class(model: nn.Module, params: Tensors, x: Tensor, y: Tensor) -> Tensor:
    """In which reconstructions x (n, *shape) a classifier sees the class y (n,) -> float64 (n,) of 0 and 1."""
    return (_logits(model, params, x).argmax(1) == y.cpu()).double()


def kl_divergence(model: nn.Module, params: Tensors, x_true: Tensor, x_rebuilt: Tensor) -> Tensor:
    """KL(p_true || p_rebuilt) in nats of the class distributions of (n, *shape) pairs -> (n,)."""
    if x_true.shape != x_rebuilt.shape:
        raise ValueError(f"images of {tuple(x_true.shape)} cannot be compared with images of {tuple(x_rebuilt.shape)}")
    log_true, log_rebuilt = (_logits(model, params, x).log_softmax(1) for x in (x_true, x_rebuilt))
    return (log_true.exp() * (log_true - log_rebuilt)).sum(1).clamp_min(0)  # below 0 only by rounding
