"""How what is sent moves with the examples: the Jacobian d(sent) / dx as a linear map, by jvp and vjp."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

Tick = Callable[[int], None]
"""Called with a number of directions that are done."""
CHUNK = 2**23
"""Numbers of an update that are computed at once, over all directions of a chunk."""
KEPT = 2**28
"""Numbers of moved updates that are kept at once, 2 GB in float64; beyond that products are taken by vjp."""


WELL = 1e-10
"""Least over largest eigenvalue from which on those of J' J are exact enough, which takes a fraction of the time."""


def silent(number: int) -> None:
    """No progress is shown."""


class Sensitivity:
    """The Jacobian of `sent`, from x of any shape to a vector of entries, at one x; directions are rows (k, unknowns)."""

    def __init__(self, sent: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self._sent, self.x = sent, x
        self.value = sent(x).detach()
        self.entries, self.unknowns = self.value.numel(), x.numel()
        self._at_once = max(1, min(64, CHUNK // max(1, self.entries)))

    def push(self, directions: Tensor, tick: Tick = silent) -> Tensor:
        """How the update moves with x, (k, entries)."""

        def moved(direction: Tensor) -> Tensor:
            return jvp(self._sent, (self.x,), (direction.view_as(self.x),))[1]  # type: ignore[no-any-return]

        out = []
        for part in directions.to(self.x).split(self._at_once):
            out.append(vmap(moved)(part).detach())
            tick(len(part))
        return torch.cat(out)

    def pull(self, weights: Tensor) -> Tensor:
        """The transpose: how weighted sums of the update, rows (k, entries), move with x, (k, unknowns)."""
        back = vjp(self._sent, self.x)[1]
        parts = [vmap(lambda one: back(one)[0].flatten())(part).detach() for part in weights.split(self._at_once)]
        return torch.cat(parts)

    def gram(self, directions: Tensor, tick: Tick = silent) -> Tensor:
        """The inner products of the moved updates, float64 (k, k): directions @ J' J @ directions'."""
        if len(directions) * self.entries <= KEPT:
            moved = self.push(directions, tick).double()
            return moved @ moved.T
        rows = []
        for part in directions.split(self._at_once):
            rows.append(self.pull(self.push(part, tick)).double() @ directions.double().T)
        products = torch.cat(rows)
        return (products + products.T) / 2

    def everything(self, tick: Tick = silent) -> Tensor:
        """The singular values, the largest first, min(entries, unknowns) of them; the whole Jacobian has to fit in memory."""
        columns = self.push(torch.eye(self.unknowns, dtype=self.x.dtype), tick).double()
        tall = columns.T if self.entries >= self.unknowns else columns
        squares: Tensor = torch.linalg.eigvalsh(tall.T @ tall)
        if squares[0] > WELL * squares[-1]:
            return squares.sqrt().flip(0)
        values: Tensor = torch.linalg.svdvals(torch.linalg.qr(tall, mode="r").R)
        return values

    def lanczos(self, steps: int, rng: torch.Generator, tick: Tick = silent) -> Tensor:
        """Estimates of singular values by Lanczos on J' J from a random start, the largest first, which converges soon.

        All basis vectors are orthogonalised anew, so that no value is found twice.
        """
        steps = min(steps, self.unknowns)
        basis = torch.zeros(0, self.unknowns, dtype=torch.float64)
        vector = torch.randn(self.unknowns, generator=rng, dtype=torch.float64)
        diagonal: list[float] = []
        beside: list[float] = []
        for _ in range(steps):
            size = vector.norm()
            if basis.numel() and size <= 1e-12 * max(diagonal):
                break
            beside.append(size.item())
            basis = torch.cat([basis, (vector / size)[None]])
            vector = self.pull(self.push(basis[-1:], tick))[0].double()
            diagonal.append((basis[-1] @ vector).item())
            for _ in range(2):
                vector = vector - basis.T @ (basis @ vector)
        matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
        off = torch.tensor(beside[1:], dtype=torch.float64)
        matrix += torch.diag(off, 1) + torch.diag(off, -1)
        values: Tensor = torch.linalg.eigvalsh(matrix)
        return values.clamp_min(0).sqrt().flip(0)


def random_directions(number: int, unknowns: int, rng: torch.Generator) -> Tensor:
    """Orthonormal rows (number, unknowns)."""
    drawn: Tensor = torch.linalg.qr(torch.randn(unknowns, number, generator=rng, dtype=torch.float64)).Q
    return drawn.T
