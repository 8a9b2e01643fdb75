"""Which reconstruction is meant for which true example: an update has no order, so the cheapest pairing counts."""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fl_app.core.text import Tokens
from fl_app.scoring.text import distances


def match(x: Tensor, true_x: Tensor, tokens: Tokens | None = None) -> Tensor:
    """The Hungarian pairing of one target: `x[match(x, true_x)]` lies beside true_x with the least MSE.

    x (n, *shape), true_x (n, *shape) -> int64 (n,). Text, whose `tokens` are given, is paired by the tokens that both have.
    """
    if x.shape != true_x.shape:
        raise ValueError(f"a reconstruction of shape {tuple(x.shape)} cannot be paired with a truth of {tuple(true_x.shape)}")
    if tokens is not None:
        return torch.as_tensor(linear_sum_assignment(distances(tokens, x, true_x).numpy())[1], device=x.device)
    # float64, because cdist expands the square and float32 would confuse near-identical images
    distance = torch.cdist(true_x.detach().flatten(1).double(), x.detach().flatten(1).double()).square()
    return torch.as_tensor(linear_sum_assignment(distance.cpu().numpy())[1], device=x.device)


def match_all(x: Tensor, true_x: Tensor) -> Tensor:
    """`match` for each of several targets: (targets, n, *shape) twice -> int64 (targets, n)."""
    if x.shape != true_x.shape:
        raise ValueError(f"reconstructions of shape {tuple(x.shape)} cannot be paired with truths of {tuple(true_x.shape)}")
    return torch.stack([match(one, truth) for one, truth in zip(x, true_x, strict=True)])
