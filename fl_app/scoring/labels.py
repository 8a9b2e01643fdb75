"""How many of a target's classes an attack found."""

import torch
from torch import Tensor


def labels_found(y: Tensor, true_y: Tensor) -> Tensor:
    """Which of n true classes are among the n answered ones, each answer used once -> float64 (n,) of 0 and 1.

    The mean is the overlap of two multisets; the order of the answers does not matter.
    """
    if y.shape != true_y.shape or not true_y.numel():
        raise ValueError(f"{tuple(y.shape)} answered classes cannot be held against {tuple(true_y.shape)} true ones")
    y, true_y = y.cpu(), true_y.cpu()
    answered = torch.bincount(y, minlength=int(true_y.max()) + 1)
    same = true_y[:, None] == true_y[None]
    before = same.tril(-1).sum(1)  # how many true examples of the class come earlier
    return (before < answered[true_y]).double()
