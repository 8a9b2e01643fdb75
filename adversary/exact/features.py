"""What one example's gradient says of the inputs of a network's layers.

A linear layer's input is a row of its weight's gradient over the same row of its bias's; that of several local steps follows,
too (`steps`). If it is a convolution's output after ReLU and max pooling, so does the convolution's own input (`pooling`).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from adversary.base import AttackError
from adversary.exact.layers import first_linear
from adversary.exact.pooling import Evidence, Law, PooledConvolution
from adversary.exact.steps import single, steps_of
from adversary.labels import as_gradient
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task

MOST_UNKNOWNS = 5000
"""Inputs of a convolution beyond which its equations are not solved: they take the square of it in memory."""
STEPS_ALIKE, STEPS_APART = 0.05, 0.3
"""Relative errors that local steps leave when they are taken apart, and when their mean is taken for one gradient (ours)."""
BREADTH = 8.0
"""Variance of features that are expected, in units of the mean square of those behind them: any are welcome (ours)."""


class Features(NamedTuple):
    """What enters a layer, by its name: (1, *shape)."""

    layer: str
    value: Tensor


def input_before(seen: Observation, y: Tensor, task: Task) -> Features:
    """The earliest features that an update of one example with the class y (1,) gives away; of several steps, at the first."""
    gradient = as_gradient(seen)
    linear = first_linear(task.model, gradient)
    name, block = _before(linear, seen.params, task)
    steps, error = [single(gradient, linear, seen.params)], 0.0
    if seen.rule.steps > 1:
        found = steps_of(seen, y, linear, task)
        steps, error = (found, STEPS_ALIKE) if found else (steps, STEPS_APART)
    pooled = torch.stack([one.entered for one in steps]).clamp_min(0)
    if not bool(pooled[0].any()):
        raise AttackError(f"what entered {linear} is nowhere above zero by this update, so no features can be peeled off")
    slope = torch.stack([one.share * one.slope for one in steps])
    value = block.taken_apart(Evidence(pooled, slope, gradient[f"{name}.weight"], error), _any_features(block.shape, pooled[0]))
    return Features(name, value.clamp_min(0).view(1, *block.shape))


def earliest(gradient: Tensors, params: Tensors, task: Task) -> str:
    """The layer whose input `input_before` finds; AttackError if there is none."""
    return _before(first_linear(task.model, gradient), params, task)[0]


def inputs_of(model: nn.Module, params: Tensors, x: Tensor, layers: list[str]) -> list[Tensor]:
    """What enters some layers for the images x; differentiable."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, inputs: found.update({name: inputs[0]})

    handles = [model.get_submodule(name).register_forward_pre_hook(keep(name)) for name in layers]
    try:
        functional_call(model, params, (x,))
    finally:
        for handle in handles:
            handle.remove()
    return [found[name] for name in layers]


def _on_noise(layers: list[str], params: Tensors, task: Task) -> list[Tensor]:
    probe = task.space.noise(2, torch.Generator().manual_seed(0)).to(next(iter(params.values())))
    with torch.no_grad():
        return inputs_of(task.model, params, probe, layers)


def _before(layer: str, params: Tensors, task: Task) -> tuple[str, PooledConvolution]:
    """The convolution whose output enters a layer after ReLU and max pooling: tried out on noise."""
    for name, conv in reversed([*task.model.named_modules()]):
        weight, bias = params.get(f"{name}.weight"), params.get(f"{name}.bias")
        plain = isinstance(conv, nn.Conv2d) and conv.groups == 1 and conv.dilation == (1, 1) and name != layer
        if not plain or weight is None or bias is None:
            continue
        before, after = _on_noise([name, layer], params, task)
        for size in (1, 2, 3):
            block = PooledConvolution(conv, weight, bias, before.shape[1:], size)
            out = block.pooled(before)
            same = out[0].numel() == after[0].numel() and torch.allclose(out.flatten(), after.flatten(), atol=1e-5)
            if same and before[0].numel() <= MOST_UNKNOWNS:
                return name, block
    raise AttackError("no convolution, ReLU and max pooling lead to the first linear layer, so its input cannot be peeled off")


def _any_features(shape: torch.Size, pooled: Tensor) -> Law:
    """Features of about the size of those behind them, and nothing else: smoothness would mislead (ours)."""
    size = (BREADTH * pooled.square().mean()).sqrt()
    return Law(pooled.mean().expand(shape.numel()), size * torch.eye(shape.numel()).to(pooled))
