"""What images look like: penalties on guesses x (targets, seeds, examples, channels, height, width) -> (targets, seeds)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fl_app.local import Tensors


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, across and down."""
    across = (x[..., 1:] - x[..., :-1]).abs().flatten(2).mean(-1)
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(2).mean(-1)
    return across + down


def norm(x: Tensor) -> Tensor:
    """Mean square of the pixels."""
    return x.square().flatten(2).mean(-1)


def group_consistency(x: Tensor) -> Tensor:
    """Mean squared distance to the mean over the seeds of a target (GradInversion, section 3.4, without registration)."""
    return (x - x.mean(1, keepdim=True)).square().flatten(2).mean(-1)


@contextmanager
def _inputs_of_batchnorms(model: nn.Module, into: dict[str, Tensor]) -> Iterator[None]:
    def keep(name: str) -> object:
        def hook(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            into[name] = inputs[0]

        return hook

    handles = [
        module.register_forward_pre_hook(keep(name))  # type: ignore[arg-type]
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def batchnorm_statistics(model: nn.Module, params: Tensors, x: Tensor) -> Tensors:
    """Mean and variance by channel of what enters each BatchNorm layer for a batch x: name -> (2, channels)."""
    inputs: dict[str, Tensor] = {}
    with _inputs_of_batchnorms(model, inputs):
        functional_call(model, params, (x,))
    return {name: torch.stack([value.mean((0, 2, 3)), value.var((0, 2, 3), correction=0)]) for name, value in inputs.items()}


def statistics_distance(model: nn.Module, params: Tensors, x: Tensor, granted: Tensors) -> Tensor:
    """Sum of the distances between the statistics of one guess x (examples, *shape) and the granted ones."""
    ours = batchnorm_statistics(model, params, x)
    return torch.stack([(ours[name] - granted[name]).square().sum().add(1e-12).sqrt() for name in granted]).sum()
