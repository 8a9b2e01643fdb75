"""How far a dummy update is from the observed one: pure functions of two updates, for one target."""

from typing import Literal

import torch
from torch import Tensor

from fl_app.local import Tensors

Objective = Literal["l2", "cosine"]
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


OBJECTIVES = {"l2": squared_l2, "cosine": cosine}
