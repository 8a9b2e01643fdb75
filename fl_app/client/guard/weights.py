"""What weights alone betray: each check is a pure function of them and gives a number, larger is worse.

Layers are found by the shapes and the order of the weights, so that no model is needed.
"""

import math
import secrets
from functools import lru_cache
from statistics import median_low

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fl_app.core.local import Tensors, finite

Numbers = NDArray[np.float64]
ALIKE = 0.999
"""|cos| of two rows that count as duplicates."""
SKETCHED, LIKELY = 16, 0.95
"""Directions of a sketch, and the |cos| of two rows in it from which on they are compared as they are."""
SUSPECT = 2.0
"""Energy of a sketch in its first direction over that in all others from which on the layer itself is looked at.

Honest layers stay below 0.5; of a layer with 20 times as much, a sketch has less than 2 twice in a million draws.
"""
BALANCED = 0.1
"""Rows of n weights whose counts of positive and negative ones differ by no more than this times sqrt(n) count as balanced."""
ROWS, WEIGHTS = 16, 32
"""The fewest rows, and weights in each, of a layer whose balance says something."""
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
        sketches = [sketch(rows) for rows in hidden]
        if not all(np.isfinite(one).all() for one in sketches):
            return {"not_finite": math.inf}  # finite weights, of which the network makes infinite sums
        found["duplicates"] = max(map(duplicates, hidden, sketches))
        found["aligned"] = max(map(likely_aligned, hidden, sketches))
        found["balance"] = max(map(balance, hidden))
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
    sizes = rows.detach().abs().double().cpu().numpy()
    largest, total = sizes.max(1).tolist(), sizes.sum(1).tolist()
    return max(map(over_the_others, largest, total))


def over_the_others(top: float, total: float) -> float:
    """The largest of some numbers over the sum of the others; 0 where all are zero, infinite where one is."""
    if not math.isfinite(total):
        return math.inf
    if total > top:
        return top / (total - top)
    return math.inf if top > 0 else 0.0


def sketch(rows: Tensor) -> Numbers:
    """Rows (n, weights) on a few secret directions, (n, few): one look at a layer, after which most are beyond suspicion.

    As numpy's, which is quicker with few numbers.
    """
    found: Numbers = (rows @ _directions(rows.shape[1]).to(rows)).double().cpu().numpy()
    return found


@lru_cache(maxsize=16)
def _directions(weights: int) -> Tensor:
    """The directions of a sketch, (weights, few); drawn anew in each process, as a server that knew them could hide."""
    return torch.randn(weights, SKETCHED, generator=torch.Generator().manual_seed(secrets.randbits(63)))


def duplicates(rows: Tensor, sketched: Numbers) -> float:
    """Share of the rows (n, weights) whose neighbour points the same way or the opposite one, as in imprint layers.

    Neighbours are those next to each other by their projection on one direction: duplicates have the same, so that n - 1
    pairs are compared in place of n^2. Pairs that point apart in the sketch are not looked at any further.
    """
    across = sketched / np.linalg.norm(sketched, axis=1, keepdims=True).clip(min=np.finfo(float).tiny)
    order = np.abs(across[:, 0]).argsort()
    across = across[order]
    (likely,) = np.nonzero(np.abs((across[1:] * across[:-1]).sum(1)) > LIKELY)
    if not len(likely):
        return 0.0
    first, second = (torch.from_numpy(order[likely + step]).to(rows.device) for step in (1, 0))
    alike = torch.linalg.vecdot(_of_length_one(rows[first]), _of_length_one(rows[second])).abs() > ALIKE
    return float(alike.sum() / max(1, len(rows) - 1))


def _of_length_one(rows: Tensor) -> Tensor:
    """Rows (n, weights) by their norms, however small these are; a row of zeros stays one, and is like none."""
    return F.normalize(rows, eps=torch.finfo(rows.dtype).tiny)


def likely_aligned(rows: Tensor, sketched: Numbers) -> float:
    """As `aligned`, which is only asked where the sketch has most of its energy in one direction; else that of the sketch."""
    energies = np.linalg.eigvalsh(sketched.T @ sketched)
    first, rest = float(energies[-1]), float(energies[:-1].sum())
    return first / rest if first < SUSPECT * rest else aligned(rows)


def aligned(rows: Tensor) -> float:
    """Energy of a matrix in its first direction over that in all others: 1 / (stable rank - 1).

    By one power iteration from the largest row, which errs to the low side, and hardly where one direction has nearly all.
    """
    norms = torch.linalg.vector_norm(rows, dim=1)
    largest = int(norms.argmax())
    if not norms[largest] > 0:
        return 0.0
    across = (rows @ (rows[largest] / norms[largest])) @ rows
    images = rows @ across
    first = float(images.dot(images) / across.dot(across))
    rest = float(norms.dot(norms)) - first
    return first / rest if rest > 0 else math.inf


def balance(rows: Tensor) -> float:
    """Share of the rows (n, weights) with as many negative as positive weights, next to exactly: trap weights.

    Of independent signs the difference is about the root of their number, of traps it is 0 by design. Small layers say nothing.
    """
    if len(rows) < ROWS or rows.shape[1] < WEIGHTS:
        return 0.0
    signs = rows.sign()
    difference = (signs @ signs.new_ones(signs.shape[1])).abs()
    likely = difference <= max(1.0, BALANCED * signs.shape[1] ** 0.5)  # as if there were no zeros, of which there are few
    roots = torch.linalg.vector_norm(signs[likely], dim=1)  # of how many are not zero
    balanced = (difference[likely] <= (BALANCED * roots).clamp(min=1)) & (roots > 0)
    return float(balanced.sum()) / len(rows)


def empty_rows(last: Tensor) -> float:
    """Share of the last layer's rows (classes, features) that are next to nothing beside the largest: class fishing.

    A layer that is zero altogether is a usual start, and counts as none.
    """
    norms: list[float] = torch.linalg.vector_norm(last, dim=1).tolist()
    return sum(norm < TINY * max(norms) for norm in norms) / len(norms)


def bias_spread(last: Tensor, bias: Tensor) -> float:
    """The largest distance of a class's bias from their median, in units of the largest row's norm, or of 1 below it."""
    norms: list[float] = torch.linalg.vector_norm(last, dim=1).tolist()
    biases: list[float] = bias.tolist()
    middle = median_low(biases)
    return max(abs(one - middle) for one in biases) / max(1.0, *norms)
