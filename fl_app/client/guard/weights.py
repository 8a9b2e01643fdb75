"""What weights alone betray: each check is a pure function of them and gives a number, larger is worse.

Layers are found by the shapes and the order of the weights, so that no model is needed.
"""

import math

import torch
from torch import Tensor

from fl_app.core.local import Tensors, finite

ALIKE = 0.999
"""|cos| of two rows that count as duplicates."""
MIRRORED = 0.1
"""How far from exact mirror images rows of n weights may be, times sqrt(n); rows of independent draws are at about 2."""
TINY = 1e-3
"""Rows of the last layer count as empty below this share of the largest row's norm."""


def weight_checks(params: Tensors) -> dict[str, float]:
    """All checks that the weights have layers for, by name; those that are not finite have none but that."""
    params = {name: value for name, value in params.items() if value.is_floating_point()}
    if not all(map(finite, params.values())):
        return {"not_finite": math.inf}
    kernels = next((value for value in params.values() if value.ndim == 4), None)
    linear = linear_names(params)
    found = {} if kernels is None else {"transmit": transmit(kernels.flatten(1))}
    if not linear:
        return found
    hidden = [params[name].float() for name in linear[:-1]]
    if hidden:
        found["duplicates"] = max(map(duplicates, hidden))
        found["aligned"] = max(map(aligned, hidden))
        found["mirror"] = max(map(mirror, hidden))
    last = params[linear[-1]].float()
    found["empty_rows"] = empty_rows(last)
    found["peak"] = transmit(last)
    bias = params.get(linear[-1].removesuffix("weight") + "bias")
    if bias is not None:
        found["bias"] = bias_spread(last, bias.float())
    return found


def linear_names(params: Tensors) -> list[str]:
    """The weights of fully connected layers, in their order."""
    return [name for name, value in params.items() if value.ndim == 2 and len(value) > 1]


def transmit(rows: Tensor) -> float:
    """Transmit-SNR of rows (n, weights), the largest: max |w| / sum of the other |w| (Garov et al. 2024).

    Above 1 a kernel passes one pixel on, or a class reads one feature. Rows of fewer than four weights say nothing.
    """
    if rows.shape[1] < 4:
        return 0.0
    sizes = rows.detach().abs().float()
    top, total = sizes.amax(1), sizes.sum(1)
    return float((top / (total - top)).nan_to_num(nan=0.0, posinf=math.inf).amax())  # 0 / 0: a row of zeros passes nothing on


def duplicates(rows: Tensor) -> float:
    """Share of the rows (n, weights) whose neighbour points the same way or the opposite one, as in imprint layers.

    Neighbours are those next to each other by their projection on one direction: duplicates have the same, so that n - 1
    pairs are compared in place of n^2.
    """
    norms = torch.linalg.vector_norm(rows, dim=1)
    direction = torch.arange(rows.shape[1], dtype=rows.dtype, device=rows.device).cos_()
    order = ((rows @ direction) / norms).abs().argsort()
    norms, ordered = norms[order], rows[order]
    products = torch.linalg.vecdot(ordered[1:], ordered[:-1]).abs()
    return float(((products > ALIKE * norms[1:] * norms[:-1]) & (products > 0)).float().mean())  # a row of zeros is like none


def aligned(rows: Tensor) -> float:
    """Energy of a matrix in its first direction over that in all others: 1 / (stable rank - 1), by two power iterations."""
    energy = rows.square().sum()
    if not energy > 0:
        return 0.0
    across = rows[torch.linalg.vector_norm(rows, dim=1).argmax()]
    for _ in range(2):
        across = (rows @ across) @ rows
        across = across / torch.linalg.vector_norm(across)
    first = (rows @ across).square().sum()
    return float(first / (energy - first).clamp(min=0))


def mirror(rows: Tensor) -> float:
    """Share of the rows (n, weights) whose negative weights are its positive ones times a factor: trap weights.

    Of such a row the counts, and the mean square over the squared mean, are the same on both sides, whatever the order.
    """
    sizes, signs = rows.abs(), rows.sign()
    # (positive + negative part, positive - negative part) of each, which costs a fourth of taking the row apart.
    counts = _parts(torch.linalg.vector_norm(signs, dim=1).square(), signs.sum(1))
    sums = _parts(sizes.sum(1), rows.sum(1))
    squares = _parts(torch.linalg.vector_norm(rows, dim=1).square(), torch.linalg.vecdot(rows, sizes))
    shape = counts * squares / sums.square()
    distance = (shape[0] / shape[1]).log().abs() + (counts[0] / counts[1]).log().abs()
    return float((distance * counts.sum(0).sqrt() < MIRRORED).float().mean())  # a comparison with nan is false


def _parts(total: Tensor, difference: Tensor) -> Tensor:
    return torch.stack([total + difference, total - difference]) / 2


def empty_rows(last: Tensor) -> float:
    """Share of the last layer's rows (classes, features) that are next to nothing beside the largest: class fishing.

    A layer that is zero altogether is a usual start, and counts as none.
    """
    norms = torch.linalg.vector_norm(last, dim=1)
    return float((norms < TINY * norms.amax()).float().mean())


def bias_spread(last: Tensor, bias: Tensor) -> float:
    """The largest distance of a class's bias from their median, in units of the largest row's norm, or of 1 below it."""
    scale = torch.linalg.vector_norm(last, dim=1).amax().clamp(min=1)
    return float((bias - bias.median()).abs().amax() / scale)
