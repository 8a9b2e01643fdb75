"""The read-out of an imprint block (Fowl et al., ICLR 2022, section 3.1): images by differences of neighbouring rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from adversary.base import Attack, AttackError, Guess
from adversary.exact.found import Found, distinct, guess_of
from adversary.search.optimizers import Rate
from fl_app.core.observation import Observation, Task
from fl_app.models.fronts import PIXEL, Imprint

WEIGHT, BIAS, OUT = "front.bins.weight", "front.bins.bias", "front.out.weight"
SLACK = 0.5
"""How far, in widths, an image may lie outside of its bin and still be believed."""
SOMEWHAT = 1e-3
"""Weight of how much a bin moved, beside whether its image can be one."""


@dataclass(frozen=True, kw_only=True)
class ImprintReadout(Attack):
    """For a server=imprint: each image that is alone in its bin of brightness, exactly; cut-offs are read from the weights."""

    least: Rate = 1e-5
    """A bin is empty if it moved by less than this share of the one that moved most."""

    near: Rate = 0.01
    """Two views see the same image if theirs are less than this apart, as a root mean square over pixels."""

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Read off each target by itself."""
        block = getattr(task.model, "front", None)
        if not isinstance(block, Imprint) or not bool(seen[0].params[OUT].any()):
            raise AttackError("the model has no imprint block with crafted weights: it is for runs with server=imprint")
        return guess_of([self._read(one, task, sparse=block.sparse) for one in seen], seen, task)

    def _read(self, seen: Observation, task: Task, *, sparse: bool) -> Found:
        rows = seen.params[WEIGHT]
        # Rows that look at the same pixels are one ladder of cut-offs.
        _, of = (rows != 0).unique(dim=0, return_inverse=True)
        views = [self._view(seen, (of == place).nonzero()[:, 0], sparse=sparse) for place in range(int(of.max()) + 1)]
        x = torch.cat([view.x for view in views])
        # An image lies in its own bin, which noise seldom does, and in every other view in one that is not empty, which a
        # blend of two images seldom does.
        inside = torch.stack([view.holds(x) for view in views]).double().mean(0)
        evidence = inside + SOMEWHAT * torch.cat([view.moved for view in views])
        return distinct(Found(x.view(-1, *task.space.shape), evidence), self.near, seen.num_examples)

    def _view(self, seen: Observation, own: Tensor, *, sparse: bool) -> "_View":
        rows, bias, out = (seen.params[name].double() for name in (WEIGHT, BIAS, OUT))
        slope = rows.sum(1) * PIXEL  # of a row's output by the brightness
        order = own[(-bias / slope)[own].argsort()]
        cuts = (-bias / slope)[order]
        # Every row learns from an image what its way out says; divided by that, neighbours learn the same.
        scale = 1 / out[0, order]
        weight, moved = seen.update[WEIGHT][order] * scale[:, None], seen.update[BIAS][order] * scale  # in float64
        if not sparse:
            weight, moved = _differences(weight), _differences(moved)
        look, ends = rows[order[0]] / rows[order[0]].sum(), torch.cat([cuts, 2 * cuts[-1:] - cuts[-2:-1]])
        # By how much a bin moved, the brightness in its middle says roughly, and its bias exactly: unless that is lost beside
        # the large bias, as after local steps, or in noise, of which the mean over all pixels has much less.
        roughly = weight @ look / (PIXEL * (ends[:-1] + ends[1:]) / 2)
        size = roughly.abs() / roughly.abs().max()
        hit = size > self.least
        exactly, x = (weight[hit] / part[hit, None] / PIXEL for part in (moved, roughly))
        slack = SLACK * (ends[1:] - ends[:-1])
        high = torch.cat([ends[1:-1] + slack[:-1], torch.full_like(slack[:1], torch.inf)])  # the last one is open
        within = (exactly @ look >= (ends[:-1] - slack)[hit]) & (exactly @ look <= high[hit])
        use = within & (seen.rule.kind == "gradient")
        return _View(look, ends, hit, torch.where(use[:, None], exactly, x), size[hit])


class _View(NamedTuple):
    """One ladder: what its rows look at, the ends of its bins, which are not empty, what is in these and how much it moved."""

    look: Tensor
    ends: Tensor
    hit: Tensor
    x: Tensor
    moved: Tensor

    def holds(self, x: Tensor) -> Tensor:
        """Whether something was in the bins of images x (n, pixels), (n,)."""
        place = torch.searchsorted(self.ends, x @ self.look, right=True) - 1
        last = len(self.hit) - 1  # the last bin has no upper end
        return (place >= 0) & self.hit[place.clamp(0, last)]


def _differences(values: Tensor) -> Tensor:
    """Each row minus the next one; the last as it is."""
    return values - torch.cat([values[1:], torch.zeros_like(values[:1])])
