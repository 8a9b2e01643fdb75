"""How far a dummy update is from the observed one: pure functions of two updates, for one target."""

from typing import Literal

import torch
from torch import Tensor

from fl_app.core.local import Tensors

Objective = Literal["l2", "cosine", "robust", "ball", "shell"]
TINY = 1e-30


def squared_l2(dummy: Tensors, observed: Tensors) -> Tensor:
    """Sum of squared differences over all entries (DLG, iDLG, GradInversion)."""
    return torch.stack([(dummy[name] - observed[name]).square().sum() for name in observed]).sum()


def cosine(dummy: Tensors, observed: Tensors) -> Tensor:
    """1 - cosine of the two updates as one vector each (Inverting Gradients): blind to their scale."""
    inner = torch.stack([(dummy[name] * observed[name]).sum() for name in observed]).sum()
    ours = torch.stack([dummy[name].square().sum() for name in observed]).sum()
    theirs = torch.stack([observed[name].square().sum() for name in observed]).sum()
    return 1 - inner / (ours * theirs + TINY).sqrt()


def robust(dummy: Tensors, observed: Tensors, width: float = 1.0) -> Tensor:
    """1 - cosine, after down-weighting the entries that do not fit: decoys and outliers among what was sent.

    One round of iteratively reweighted least squares at each call, with Cauchy weights 1 / (1 + (r / s)^2): r is the
    residual after the best common scale, s is `width` times its mean size in the tensor. The weights are constants to
    the slope. An infinite width is the plain cosine.
    """
    inner = torch.stack([(dummy[name] * observed[name]).sum() for name in observed]).sum()
    ours = torch.stack([dummy[name].square().sum() for name in observed]).sum()
    scale = (inner / (ours + TINY)).detach()
    weighted: tuple[Tensors, Tensors] = {}, {}
    for name, value in observed.items():
        residual = (value - scale * dummy[name]).detach()
        root = (1 + (residual / (width * residual.abs().mean() + TINY)).square()).rsqrt()
        weighted[0][name], weighted[1][name] = root * dummy[name], root * value
    return cosine(*weighted)
