"""BatchNorm statistics of a batch: what a server is told of it where clients share them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fl_app.core.local import Tensors


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
