"""SPEAR's decomposition (Dimitrov et al. 2024): the inputs of a whole batch from the gradient of one linear layer and its ReLU.

The weight's gradient is D'X with a row of D per neuron and a column per example: rank B, so D = LQ for any basis L of its
columns. About half of each column of D is zero, where that example's ReLU is off, so that the columns of Q are the directions
in which most rows of L vanish. The paper draws B - 1 rows until all of them belong to one example, which takes 2 ** B draws;
here random directions are turned until they vanish on many rows (least squares, reweighted), which finds most of them at
once in layers with many neurons, and rows are drawn for those that are left. That the inputs which follow switch exactly the
ReLUs that D says (gamma = 1) proves the decomposition.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from adversary.base import AttackError

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Relative size below which a number counts as zero, by the precision of the gradient."""
FINE = 0.01
"""Of that, once a direction was fitted to many rows and no noise is expected."""
ALONE = 0.999
"""Leverage of a row from which on a direction hangs on it alone."""
STARTS = 128
"""Directions that are searched for at once."""
ITERATIONS = 60
WIDE, NARROW = 1.0, 1e-3
"""What counts as small in the first and in the last iteration, in units of the root mean square over rows (ours)."""
SETS, PAIRS = 4096, 8
"""Sets of all but two rows that are drawn beside, and how many pairs complete each: three dimensions are left before."""
SCREEN, HITS = 40, 256
"""Rows on which a direction of these is looked at first, and how many are looked at closely."""
FOUND = 1e-4
"""Relative size below which the search leaves the rows on which a direction vanishes."""
AGREE = 8
"""Rows that agree on what a mixture of two directions is made of."""
SAME = 1e-3
"""Sine of the angle below which two columns are the same one, or one of them a mixture of others."""
SWAPS = 24
"""Candidates beyond the basis that are tried in it."""


class Layer(NamedTuple):
    """A linear layer and its gradient: weights (m, n), biases (m,)."""

    weight: Tensor
    bias: Tensor
    weight_gradient: Tensor
    bias_gradient: Tensor


class Decomposition(NamedTuple):
    """inputs: (examples, n), slopes: (examples, m), the gradient by what leaves the layer; gamma: share of ReLUs explained."""

    inputs: Tensor
    slopes: Tensor
    gamma: float


def rank_of(gradient: Tensor, tolerance: float) -> int:
    """How many singular values stand out of rounding: the number of examples."""
    values = torch.linalg.svdvals(gradient.double())
    return int((values > tolerance * values[0]).sum())


def decompose(layer: Layer, examples: int, rng: torch.Generator, *, draws: int, tolerance: float = 0.0) -> Decomposition:
    """Inputs and slopes of at most so many examples, in no particular order, from at most so many random directions.

    `tolerance`: relative size below which a number counts as zero; 0: by the precision of the gradient.
    """
    precision = torch.finfo(layer.weight_gradient.dtype).eps
    fine = tolerance or FINE * TOLERANCE.get(layer.weight_gradient.dtype, 1e-2)
    tolerance = tolerance or fine / FINE
    layer = Layer(*(value.double() for value in layer))
    size = min(examples, rank_of(layer.weight_gradient, max(10 * precision, tolerance / 10)))
    search = _Search(layer, size, tolerance, fine, rng)
    best = search.answer()
    most = draws if size > 1 else 0
    while best.gamma < 1 and search.drawn < most:  # 0.99 is no proof: it was seen with two images of four wrong
        if search.draw():
            found = search.answer()
            best = found if found.gamma > best.gamma else best
    return best


class _Search:
    def __init__(self, layer: Layer, size: int, tolerance: float, fine: float, rng: torch.Generator) -> None:
        if size < 1:
            raise AttackError("the gradient of the layer is zero, so it tells nothing")
        self.fine = fine
        self.through = layer.weight_gradient @ layer.weight.T
        self.layer, self.size, self.tolerance, self.rng, self.drawn = layer, size, tolerance, rng, 0
        left, values, _ = torch.linalg.svd(layer.weight_gradient, full_matrices=False)
        self.columns = left[:, :size]
        # In these coordinates rounding is the same in all directions.
        self.rows = self.columns * values[:size]
        norms = self.rows.norm(dim=1)
        self.alive = norms > tolerance * norms.max()
        self.unit = self.rows[self.alive] / norms[self.alive, None]
        # In these the columns of D are about as long as each other.
        self.white = torch.nn.functional.normalize(self.columns[self.alive], dim=1)
        self.metric = values[:size]
        # Step by step, as a row that is small by chance would stand for a zero, and spoil the direction.
        finer = round(math.log10(max(tolerance, FOUND) / fine))
        self.ladder = [fine * 10.0**step for step in reversed(range(finer))] + [fine]
        self.found = torch.zeros(0, size, dtype=torch.float64)
        self.score = torch.zeros(0, dtype=torch.float64)
        if size == 1:
            self._keep(torch.ones(1, 1, dtype=torch.float64))

    def draw(self) -> bool:
        """Search from random directions, a half of them apart from those found, a quarter held there; whether one is new."""
        starts = torch.randn(STARTS, self.size, dtype=torch.float64, generator=self.rng)
        known = self.found[self._independent(1.0)]
        apart = STARTS // 2 if 0 < len(known) < self.size else 0
        free = starts[:apart] - starts[:apart] @ torch.linalg.pinv(known) @ known
        starts[apart // 2 : apart] = free[apart // 2 :]
        self.drawn += STARTS
        turned = [_sparse(self.white, starts, free[: apart // 2]), _untangled(self.white, self.found[:STARTS], known)]
        found = torch.nn.functional.normalize(torch.cat(turned) / self.metric, dim=1)
        return self._keep(torch.cat([found, self._on_rows(known)]) if self.drawn > STARTS else found)

    def _independent(self, least: float) -> list[int]:
        """The places of directions found that vanish on the most rows and are no mixture of others, from a score on."""
        chosen, span = list[int](), self.found.new_zeros(0, self.size)
        for place in (self.score >= least).nonzero()[:, 0].tolist():  # most zeros first
            rest = self.found[place] - span.T @ (span @ self.found[place])
            if rest.norm() > SAME:
                chosen.append(place)
                span = torch.cat([span, rest[None] / rest.norm()])
        return chosen

    def _on_rows(self, known: Tensor) -> Tensor:
        """Directions (n, size) that vanish on size - 1 rows which were drawn, and by chance on more: the paper's search."""
        order = torch.randperm(len(self.unit), generator=self.rng)
        looked = min(SCREEN, len(order) // 3)
        screen, pool, weight = self.unit[order[:looked]], self.unit[order[looked:]], self._likely(known)[order[looked:]]
        basis = self._null_spaces(pool, weight)
        left, shown = pool @ basis, screen @ basis  # (sets, rows, 3)
        pairs = torch.multinomial(weight, 2 * SETS * PAIRS, replacement=True, generator=self.rng)
        first, second = (left.gather(1, one[..., None].expand(-1, -1, 3)) for one in pairs.view(2, SETS, PAIRS))
        if self.size == 2:
            second = second.new_tensor([0.0, 0.0, 1.0]).expand_as(second)
        normal = torch.linalg.cross(first, second)
        off = (normal @ shown.transpose(1, 2)).abs()
        hits = (off <= self.tolerance * off.amax(-1, keepdim=True)).sum(-1) >= max(3, looked // 10)
        chosen = hits.nonzero()[:HITS].T
        candidates = (basis[chosen[0]] @ normal[chosen[0], chosen[1], :, None])[..., 0]
        candidates = candidates[candidates.isfinite().all(1) & (candidates.norm(dim=1) > 0)]
        return torch.nn.functional.normalize(candidates, dim=1)

    def _likely(self, known: Tensor) -> Tensor:
        """How likely a row is off for an example that is still missing: as often as for those found, or as any. (rows,)."""
        slopes = (known @ self.columns[self.alive].T).abs()
        off = (slopes <= self.tolerance * slopes.amax(1, keepdim=True)).double()
        power = torch.randint(3, (), generator=self.rng)
        weight: Tensor = ((1 + off.sum(0)) / (2 + len(off))) ** power
        return weight

    def _null_spaces(self, pool: Tensor, weight: Tensor) -> Tensor:
        """Bases (sets, size, 3) of what vanishes on size - 3 random rows, the likely ones first."""
        fixed = max(0, self.size - 3)
        rest = torch.eye(3, dtype=pool.dtype)[: self.size].expand(SETS, -1, 3)
        if not fixed:
            return rest
        waits = -torch.rand(SETS, len(pool), generator=self.rng).log() / weight.float()
        rows = pool[waits.topk(fixed, dim=1, largest=False).indices]
        solved = torch.linalg.solve_ex(rows[:, :, :fixed], -rows[:, :, fixed:])[0]
        return torch.cat([solved, rest], 1)

    def _keep(self, starts: Tensor) -> bool:
        """Refine directions (n, size) on all rows where they vanish, keep what is new; whether something was."""
        near, score = self._refined(starts)
        columns = torch.nn.functional.normalize(near * self.metric, dim=1)
        columns, score = torch.cat([self.found, columns]), torch.cat([self.score, score])
        same = (columns @ columns.T).abs() > 1 - SAME**2
        new = ~same.tril(-1).any(1)  # the first of its kind
        some = int(new.sum()) > len(self.found)
        kept = new.nonzero()[:, 0]
        kept = kept[score[kept].argsort(descending=True, stable=True)[: 4 * self.size + SWAPS]]
        self.found, self.score = columns[kept], score[kept]
        return some

    def _refined(self, near: Tensor) -> tuple[Tensor, Tensor]:
        """(directions that vanish on more rows than any would, on how many); less for those that hang on a single row."""
        if self.size == 1:
            return near, near.new_ones(len(near))
        squares = (self.unit[:, :, None] * self.unit[:, None, :]).flatten(1)
        vanish = self._vanishing(near, max(self.tolerance, FOUND))
        for tolerance in self.ladder:
            spread = (vanish.double() @ squares).view(-1, self.size, self.size)
            values, vectors = torch.linalg.eigh(spread)
            near = vectors[..., 0]
            vanish = self._vanishing(near, tolerance)
        # A mixture of two columns vanishes where both do, and on one row more that decides which mixture it is.
        leverage = ((self.unit @ vectors[..., 1:]).square() / values[:, None, 1:].clamp_min(1e-30)).sum(-1)
        hangs = (torch.where(vanish, leverage, 0.0) > ALONE).any(1)
        zeros = vanish.sum(1).double()
        enough = zeros > self.size
        return near[enough], torch.where(hangs, zeros / len(self.unit), zeros)[enough]

    def _vanishing(self, directions: Tensor, tolerance: float) -> Tensor:
        """On which rows some directions (n, size) vanish: bool (n, rows)."""
        off = (directions @ self.unit.T).abs()
        vanish: Tensor = off <= tolerance * off.amax(1, keepdim=True)
        return vanish

    def answer(self) -> Decomposition:
        """The best decomposition that the directions found so far allow."""
        nothing = Decomposition(self.layer.weight[:0], self.layer.bias[None][:0], 0.0)
        order, chosen = range(len(self.found)), self._independent(0.0)
        if len(chosen) < self.size:
            return nothing
        slopes, gamma = self._explained(chosen)
        for other in [place for place in order if place not in chosen][:SWAPS]:
            # In one place alone, and in no basis of fewer dimensions: one example twice would explain its ReLUs twice.
            swapped = [[*chosen[:place], other, *chosen[place + 1 :]] for place in range(self.size if gamma < 1 else 0)]
            for tried in swapped:
                found = self._explained(tried)
                if found[1] > gamma and torch.linalg.matrix_rank(self.found[tried], rtol=self.tolerance) == self.size:
                    (slopes, gamma), chosen = found, tried
        return Decomposition(torch.linalg.lstsq(slopes, self.layer.weight_gradient).solution, slopes.T, gamma)

    def _explained(self, chosen: list[int]) -> tuple[Tensor, float]:
        """Slopes (m, size) if these directions are the columns, and the share of ReLUs that they explain."""
        slopes = self.columns @ self.found[chosen].T
        slopes = slopes * torch.linalg.lstsq(slopes, self.layer.bias_gradient[:, None]).solution[:, 0]
        outputs = torch.linalg.lstsq(slopes, self.through).solution + self.layer.bias
        on, size = outputs.T > 0, slopes.abs() / slopes.abs().amax(0)
        # Between the two tolerances nobody can tell a small slope from none.
        explained = torch.where(on, size > FINE * self.tolerance, size <= self.tolerance)
        return torch.where(on, slopes, 0.0), explained.double().mean().item()


def _sparse(rows: Tensor, starts: Tensor, parts: Tensor) -> Tensor:
    """Directions (n, size) turned from starts until they vanish on many of the rows (m, size), each by itself.

    Rows on which a direction is small count for more when it is turned to where all are least, and more so each time. The first
    keep as much as they have of `parts` (held, size), so that they cannot come to what is orthogonal to these.
    """
    squares = (rows[:, :, None] * rows[:, None, :]).flatten(1)
    size, held, directions = rows.shape[1], len(parts), torch.nn.functional.normalize(starts, dim=1)
    for step in range(ITERATIONS):
        off = (directions @ rows.T).square()
        small = WIDE * (NARROW / WIDE) ** (step / (ITERATIONS - 1))
        weight = 1 / (off + small**2 * off.mean(1, keepdim=True).clamp_min(1e-300))
        spread = ((weight / weight.mean(1, keepdim=True)) @ squares).view(-1, size, size)
        directions = torch.linalg.eigh(spread[held:]).eigenvectors[..., 0]
        if held:
            least = torch.linalg.solve_ex(spread[:held], parts)[0]
            directions = torch.cat([torch.nn.functional.normalize(least, dim=1), directions])
    return directions


def _untangled(rows: Tensor, mixed: Tensor, known: Tensor) -> Tensor:
    """Directions that vanish on more rows than the mixed ones (n, size), each with some of a known one (k, size) taken off.

    Of two examples that are much alike a mixture is found in place of one. Taking off the other makes the rows vanish at which
    the one is zero, and at all of them it takes the same share: that on which the most rows agree.
    """
    agree = min(AGREE, len(rows))
    shares = (mixed @ rows.T)[:, None] / (known @ rows.T)  # (n, k, m)
    if not shares.numel():
        return mixed[:0]
    ordered = shares.nan_to_num(nan=math.inf).sort(-1).values
    apart = (ordered[..., agree - 1 :] - ordered[..., : len(rows) - agree + 1]).nan_to_num(nan=math.inf)
    spread, least = (apart / ordered[..., agree - 1 :].abs().clamp_min(1e-3)).min(-1)
    itself = torch.nn.functional.cosine_similarity(mixed[:, None], known, dim=-1).abs() > 1 - SAME**2
    other = spread.masked_fill(itself, math.inf).argmin(1)
    place = least.gather(1, other[:, None])[..., None]
    share = ordered.gather(1, other[:, None, None].expand(-1, 1, len(rows))).gather(2, place + agree // 2)[:, 0]
    return mixed - share.nan_to_num(posinf=0.0, neginf=0.0) * known[other]
