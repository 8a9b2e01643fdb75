"""Several reconstructions of the same examples in orders of their own: paired at the least cost, and averaged."""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def paired_means(x: Tensor, classes: Tensor | None) -> Tensor:
    """The means (targets, examples, *shape) of x (targets, several, examples, *shape), in the order of the first.

    With classes (targets, examples) only examples of one class are paired.
    """
    if x.shape[1] == 1:
        return x[:, 0]
    means = [_mean(each, None if classes is None else classes[target]) for target, each in enumerate(x)]
    return torch.stack(means)


def _mean(several: Tensor, classes: Tensor | None) -> Tensor:
    """The mean of paired examples (several, examples, *shape)."""
    flat = several.detach().flatten(2).double()
    paired = [several[0]]
    for place in range(1, len(several)):
        cost = torch.cdist(flat[0], flat[place]).square()
        if classes is not None:
            cost = cost + (classes[:, None] != classes) * (cost.max() * len(cost) + 1)
        paired.append(several[place][torch.as_tensor(linear_sum_assignment(cost.cpu().numpy())[1], device=several.device)])
    return torch.stack(paired).mean(0)
