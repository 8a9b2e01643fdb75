"""What images look like: penalties on guesses x (targets, seeds, examples, channels, height, width) -> (targets, seeds)."""

import torch
from torch import Tensor, nn

from fl_app.core.local import Tensors
from fl_app.models.statistics import batchnorm_statistics


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, across and down."""
    across = (x[..., 1:] - x[..., :-1]).abs().flatten(2).mean(-1)
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(2).mean(-1)
    return across + down


def norm(x: Tensor) -> Tensor:
    """Mean square of the pixels."""
    return x.square().flatten(2).mean(-1)


def group_consistency(x: Tensor) -> Tensor:
    """Mean squared distance to the mean over the seeds of a target (GradInversion, section 3.4, without registration)."""
    return (x - x.mean(1, keepdim=True)).square().flatten(2).mean(-1)


def statistics_distance(model: nn.Module, params: Tensors, x: Tensor, granted: Tensors) -> Tensor:
    """Sum of the distances between the statistics of one guess x (examples, *shape) and the granted ones."""
    ours = batchnorm_statistics(model, params, x)
    return torch.stack([(ours[name] - granted[name]).square().sum().add(1e-12).sqrt() for name in granted]).sum()
