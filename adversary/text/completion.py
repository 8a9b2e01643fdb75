"""Entries of a gradient that a defense left out, filled in: a sentence gives a layer's gradient few directions (ours)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from adversary.base import AttackError
from fl_app.core.local import Tensors
from fl_app.core.spec import parse

FIT = 1e-6
"""Relative distance from what is known at which a matrix counts as found; rounding to float32 leaves 1e-7."""
ITERATIONS, LOOK, STALLED, STEP = 200, 10, 0.95, 2
"""Of alternating least squares, at the most; how often the distance is looked at, and the factor by which it has to fall.

The last is the step from one rank that is tried to the next."""
SPARE = 1.2
"""Known entries for each free number of a matrix of some rank, at the least."""


def leaves_out(defense: str) -> bool:
    """Whether a defense, by its spec, sends some entries as they are and zeros for all others."""
    return {part.name for part in parse(defense)} <= {"mask", "prune"}


def filled(gradient: Tensors, layers: Sequence[str]) -> Tensors:
    """The gradient, with what is exactly zero in linear layers of these names filled in."""
    found = dict(gradient)
    for layer in layers:
        weight, bias = gradient[f"{layer}.weight"], gradient[f"{layer}.bias"]
        both = completed(torch.cat([weight, bias[:, None]], dim=1).double()).to(weight)
        found[f"{layer}.weight"], found[f"{layer}.bias"] = both[:, :-1], both[:, -1]
    return found


def completed(matrix: Tensor) -> Tensor:
    """The matrix (rows, columns) of least rank that agrees with the entries that are not zero; AttackError if there is none."""
    known, leading = (matrix != 0).to(matrix), torch.linalg.svd(matrix, full_matrices=False).Vh.T
    # From below: one too large is found slowly or not at all, one more than needed adds a direction of rounding.
    for rank in range(STEP, int(known.sum() / (SPARE * sum(matrix.shape))) + 1, STEP):
        tried = of_rank(matrix, known, leading[:, :rank])
        if tried is not None:
            return tried
    raise AttackError("too little of the update is there to fill in the rest: use select=top")


def of_rank(matrix: Tensor, known: Tensor, right: Tensor) -> Tensor | None:
    """A matrix that agrees with the entries where known (rows, columns) is 1, by alternating least squares; None if none does.

    It has the rank of its start, right (columns, rank).
    """
    size, before = matrix.norm(), torch.inf
    for iteration in range(1, ITERATIONS + 1):
        left = torch.linalg.qr(_other(matrix, known, right)).Q
        found = _other(matrix.T, known.T, left)
        right = torch.linalg.qr(found).Q
        if iteration % LOOK:
            continue
        whole: Tensor = left @ found.T
        distance = float(((whole - matrix) * known).norm() / size)
        if distance < FIT:
            return whole
        if not distance < STALLED * before:
            return None
        before = distance
    return None


def _other(matrix: Tensor, known: Tensor, basis: Tensor) -> Tensor:
    """The factor (rows, rank) that goes best with a basis (columns, rank), by what is known of each row."""
    rank = basis.shape[1]
    pairs = (basis[:, :, None] * basis[:, None]).flatten(1)
    products = (known @ pairs).view(-1, rank, rank) + torch.finfo(matrix.dtype).eps * torch.eye(rank).to(matrix)
    solved: Tensor = torch.linalg.solve(products, ((matrix * known) @ basis)[..., None])[..., 0]
    return solved
