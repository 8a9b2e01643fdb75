"""Several local steps on one example taken apart: what entered the first linear layer at each of them.

The steps' inputs of that layer span the rows of its weight's update, which has their number as its rank. So they are known up
to a small square matrix; the update of that layer and of all behind it has far more entries, and is explained by no other one.
"""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import jacfwd

from adversary.labels import as_gradient
from fl_app.core.local import LocalRule, Step, Tensors, finite, local_update
from fl_app.core.observation import Observation, Task

ITERATIONS = 50
"""Of Levenberg and Marquardt's method."""
EXPLAINED = 1e-3
"""Relative distance from the update below which inputs explain it: weights in float32 leave less."""
WORTH = 1e-2
"""Share of the distance that an iteration must gain: near the solution it gains nearly all."""

INWARD = (1.0, 0.8, 0.6)
"""Where the inputs of the first and the last step may lie between the mean and the ends."""
ZERO = 1e-4
"""Entries below this share of the largest count as zero in all steps."""


class Taken(NamedTuple):
    """One local step: its share of the update, what entered the first linear layer, and the gradient by that, (features,)."""

    share: float
    entered: Tensor
    slope: Tensor


def single(gradient: Tensors, layer: str, params: Tensors) -> Taken:
    """A gradient as the only step: what entered a linear layer is any row of its weight's over the same row of its bias's."""
    weight, bias = gradient[f"{layer}.weight"], gradient[f"{layer}.bias"]
    return Taken(1.0, bias @ weight / bias.square().sum().clamp_min(1e-30), bias @ params[f"{layer}.weight"])


def steps_of(seen: Observation, y: Tensor, layer: str, task: Task) -> list[Taken] | None:
    """The local steps of one example, by what entered a linear layer that all behind it depends on; None if none explain it."""
    rule = seen.rule
    if rule.optimizer != "sgd":
        return None
    head = _Head(task, layer)
    params = {f"model.{name}": value.double() for name, value in seen.params.items()}
    update = {f"model.{name}": value.double() for name, value in seen.update.items()}
    labels = y.expand(rule.steps)
    gradient = as_gradient(seen)  # without the weights' decay, which has no such rank
    weight, bias = gradient[f"{layer}.weight"].double(), gradient[f"{layer}.bias"].double()
    rows = torch.linalg.svd(weight, full_matrices=False).Vh[: rule.steps]
    mean = rows @ (bias @ weight) / bias.square().sum().clamp_min(1e-60)
    behind = _behind(head, params, (mean @ rows)[None], y)
    if f"model.{layer}.weight" not in behind:
        return None
    size = torch.cat([update[name].flatten() for name in behind]).norm()

    def left(mixed: Tensor) -> Tensor:
        entered = mixed.view(rule.steps, -1) @ rows
        ours = local_update(head, params, entered, labels, rule, Step.differentiable_gradient)
        rest = {name: ours[name] - update[name] for name in behind}
        rest[f"model.{layer}.weight"] = rest[f"model.{layer}.weight"] @ rows.T  # nothing lies outside of the rows
        result: Tensor = torch.cat([value.flatten() for value in rest.values()]) / size
        return result

    for start in _starts(mean, rows, rule.steps):
        mixed, distance = _least(left, start)
        if distance < EXPLAINED:
            break
    else:
        return None
    entered, slopes = mixed.view(rule.steps, -1) @ rows, list[Tensor]()

    def noted(step: Step) -> Tensors:
        x = step.x.detach().requires_grad_()
        logits = torch.func.functional_call(step.model, step.params, (x,))
        slopes.append(torch.autograd.grad(nn.functional.cross_entropy(logits, step.y), x)[0][0])
        return step.gradient()

    local_update(head, params, entered, labels, rule, noted)
    like = next(iter(seen.params.values()))
    return [
        Taken(share, one.to(like), slope.to(like)) for share, one, slope in zip(_shares(rule), entered, slopes, strict=True)
    ]


def _starts(mean: Tensor, rows: Tensor, steps: int) -> list[Tensor]:
    """Inputs of all steps to start from, as mixtures of the rows (steps, features), flat.

    What leaves a ReLU is nowhere negative. The first and the last step's inputs each have zeros where the other has none, as a
    rule, so that in the plane of the first two rows they are the ends of all mixtures without a negative entry, or lie not far
    inward of them, in one order or the other; those of the steps between them lie about evenly between.
    """
    across = torch.zeros_like(mean)
    across[:2] = torch.stack([-mean[1], mean[0]])
    at, slope = mean @ rows, across @ rows
    counts = at.abs() + slope.abs() > ZERO * at.abs().max()
    ends = -at / slope
    low, high = ends[counts & (slope > 0)], ends[counts & (slope < 0)]
    if not (len(low) and len(high)):
        return [mean.repeat(steps)]
    way = torch.linspace(0, 1, steps, dtype=mean.dtype, device=mean.device)[:, None]
    pairs = [(low.amax() * left, high.amin() * right) for left, right in product(INWARD, INWARD)]
    both = [pair for left, right in pairs for pair in ((left, right), (right, left))]
    return [(mean + (one + way * (other - one)) * across).flatten() for one, other in both]


def _shares(rule: LocalRule) -> list[float]:
    """How much each step's gradient counts in the update, in all 1: with momentum the earlier ones count more."""
    counts = [sum(rule.momentum**later for later in range(rule.steps - step)) for step in range(rule.steps)]
    return [count / sum(counts) for count in counts]


class _Head(nn.Module):
    """The network from a layer's input on: what comes before sees a blank and is not heard."""

    def __init__(self, task: Task, layer: str) -> None:
        super().__init__()
        self.model, self.layer = task.model, layer
        self.blank = task.space.noise(1, torch.Generator().manual_seed(0)).double()

    def forward(self, entered: Tensor) -> Tensor:
        """(batch, features) -> (batch, classes)."""

        def replaced(_: nn.Module, __: Any) -> Tensor:
            return entered

        handle = self.model.get_submodule(self.layer).register_forward_pre_hook(replaced)
        try:
            result: Tensor = self.model(self.blank.to(entered).expand(len(entered), *self.blank.shape[1:]))
        finally:
            handle.remove()
        return result


def _behind(head: nn.Module, params: Tensors, entered: Tensor, y: Tensor) -> list[str]:
    """The parameters that the layer's input reaches: those that have a gradient."""
    found = Step(params, head, entered, y).gradient()
    return [name for name, value in found.items() if bool(value.any())]


def _least(left: Callable[[Tensor], Tensor], start: Tensor) -> tuple[Tensor, float]:
    """The point at which the remainder is least, from a start, and its norm there; by Levenberg and Marquardt's method."""
    at, now, damping = start, left(start), 1e-3
    slope = jacfwd(left)
    for _ in range(ITERATIONS):
        matrix = slope(at)
        if not finite(matrix):
            break
        square = matrix.T @ matrix
        scales = square.diagonal().clamp_min(1e-12 * square.diagonal().amax())  # a direction may change nothing at all
        moved = at - torch.linalg.pinv(square + damping * scales.diag(), hermitian=True) @ (matrix.T @ now)
        then = left(moved)
        if then.norm() < now.norm():
            gained = 1 - then.norm() / now.norm()
            at, now, damping = moved, then, damping / 10
            if gained < WORTH:
                break
        else:
            damping *= 10
            if damping > 1e8:
                break
    return at, float(now.norm())
