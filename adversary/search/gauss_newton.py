"""Gauss-Newton for many independent reconstructions at once: matching an update is a least-squares problem.

L-BFGS learns the curvature of its last steps alone, and stays in the narrow valleys of batches. Here it is that of the update
itself, J'J, by products with vectors, so that nothing of its size is ever stored.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import grad

from adversary.search.progress import out_of_time
from fl_app.core.local import Tensors

Residuals = Callable[[Tensor], Tensor]
"""Points (problems, dimensions) -> (problems, residuals), whose squares sum to the loss."""

SOFTEST, STRICTEST = 1e-12, 1e6
FIRST = 1e-4
"""Of the damping, in units of the curvature along the first gradient (ours)."""
EASIER, HARDER = 0.25, 4.0
STILL, TWICE = 1e-3, 2
"""A problem that so many steps in a row make better by no more than this share is settled."""
NEAR = 1e-3
"""Of the gradient: what the linear system may leave over."""


class BatchedGaussNewton:
    """Levenberg-Marquardt steps by conjugate gradients over (problems, dimensions); a step that does not help is taken back."""

    def __init__(self, residuals: Residuals, products: int) -> None:
        self._residuals, self._products = residuals, products
        self._kept: Tensors = {}

    def state(self) -> Tensors:
        """All that the next step depends on, by name."""
        return self._kept

    def restore(self, state: Tensors) -> None:
        """Go on from a state; an empty one is that before the first step."""
        self._kept = dict(state)

    def reset(self, problems: Tensor) -> None:
        """Forget some problems, bool (problems,): whatever comes next is accepted."""
        if self._kept:
            self._kept["loss"] = torch.where(problems, torch.inf, self._kept["loss"])
            self._kept["damping"] = torch.where(problems, FIRST, self._kept["damping"])
            self._kept["still"] = torch.where(problems, 0, self._kept["still"])

    @property
    def settled(self) -> bool:
        """Whether no problem moves any more."""
        return bool(self._kept) and bool((self._kept["still"] >= TWICE).all())

    def step(self, point: Tensor, loss: Tensor) -> Tensor:
        """The next points to evaluate, given the last ones with their losses (problems,)."""
        if not self._kept:
            unknown = torch.full_like(loss, torch.inf)
            self._kept = {
                "point": point,
                "loss": unknown,
                "damping": torch.full_like(loss, FIRST),
                "size": torch.zeros_like(loss),
                "still": torch.zeros_like(loss),
            }
        kept = self._kept
        fresh, good = kept["loss"].isinf(), loss < kept["loss"]
        point = torch.where(good[:, None], point, kept["point"])
        damping = torch.where(good, kept["damping"] * EASIER, kept["damping"] * HARDER).clamp(SOFTEST, STRICTEST)
        gain = (kept["loss"] - loss) / kept["loss"].abs().clamp_min(1e-30)
        # A step that was taken back says nothing, unless damping cannot make it any shorter.
        still = torch.where(fresh | (gain > STILL), 0, kept["still"] + (good | (damping >= STRICTEST)))
        kept |= {
            "point": point,
            "still": torch.where(kept["still"] >= TWICE, kept["still"], still),
            "loss": torch.where(good, loss, kept["loss"]),
            "damping": torch.where(fresh, kept["damping"], damping),
        }
        moves = kept["still"] < TWICE  # whoever is settled waits for the others, so that company does not change it
        return torch.where(moves[:, None], point + self._direction(point), point)

    def _direction(self, point: Tensor) -> Tensor:
        """What solves (J'J + damping) direction = -J'r, about."""
        kept = self._kept
        point = point.detach().requires_grad_()
        found = self._residuals(point)
        weights = torch.zeros_like(found, requires_grad=True)
        (pulled,) = grad(found, point, weights, create_graph=True)
        left = -grad(found, point, found.detach(), retain_graph=True)[0]
        direction, along, before = torch.zeros_like(point), left, _dot(left, left)
        enough, busy = NEAR**2 * before, torch.ones_like(before, dtype=torch.bool)
        for _ in range(self._products):
            # J'w is linear in w, so that its derivative is J: both products walk graphs that were built once.
            (pushed,) = grad(pulled, weights, along, retain_graph=True)
            (curved,), length = grad(found, point, pushed, retain_graph=True), _dot(along, along)
            unset = kept["size"] == 0
            kept["size"] = torch.where(unset, _dot(pushed, pushed) / length.clamp_min(1e-30), kept["size"])
            damped = curved + (kept["damping"] * kept["size"])[:, None] * along
            # One that is done stands still, so that it does not matter beside whom it is solved.
            rate = torch.where(busy, before / _dot(along, damped).clamp_min(1e-30), 0)
            direction = direction + rate[:, None] * along
            left = left - rate[:, None] * damped
            after = _dot(left, left)
            busy = busy & (after > enough)
            if not bool(busy.any()) or out_of_time():  # what is there already leads downhill
                break
            along = left + (after / before.clamp_min(1e-30))[:, None] * along
            before = after
        return direction


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(1)
