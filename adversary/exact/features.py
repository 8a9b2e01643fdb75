"""What an update of one example says of the features inside the network, before any search.

A linear layer's input is a row of its weight's gradient over the same row of its bias's. If that input is a convolution's
output after ReLU and max pooling, the convolution's own input follows too: given which position of each pooling window was
the largest, the gradient of the convolution's weight is linear in it, with more equations than unknowns. The positions are
found by expectation maximisation.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from adversary.base import AttackError
from fl_app.core.local import Tensors
from fl_app.core.observation import Task

ITERATIONS = 20
WIDEST, NARROWEST = 0.75, 0.04
"""How far a convolution's outputs may be off at first and at last, in units of the pooled ones' root mean square."""
SPREAD = 2.0
"""Weight of the spread over undecided positions: 1 would be the expectation itself, 2 rebuilds better (ours)."""
PULL = 0.1
"""Weight of the pooled outputs beside the gradient, both as relative squared errors (ours)."""
MOST_UNKNOWNS = 5000
"""Inputs of a convolution beyond which its equations are not solved: they take the square of it in memory."""


class Start(NamedTuple):
    """Where a second look at an update starts: what an image that is roughly right makes of the layer's input."""

    value: Tensor
    weight: float


class Features(NamedTuple):
    """What enters a layer, by its name: (1, *shape)."""

    layer: str
    value: Tensor


def input_before(gradient: Tensors, params: Tensors, task: Task, start: Start | None = None) -> Features:
    """The earliest features that the gradient of one example gives away; AttackError if there are none."""
    gradient = {name: value.double() for name, value in gradient.items()}
    linear = _first_linear(task.model, gradient)
    weight, bias = gradient[f"{linear}.weight"], gradient[f"{linear}.bias"]
    pooled = bias @ weight / bias.square().sum().clamp_min(1e-30)
    block = _block_before(linear, params, task)
    slope = bias @ params[f"{linear}.weight"].double()
    value = block.inputs(gradient[f"{block.name}.weight"], pooled.clamp_min(0), slope, start)
    return Features(block.name, value.view(1, *block.shape).to(next(iter(params.values()))))


def _first_linear(model: nn.Module, gradient: Tensors) -> str:
    layers: list[tuple[str, nn.Module]] = list(model.named_modules())
    for name, layer in layers:
        if isinstance(layer, nn.Linear) and f"{name}.bias" in gradient and f"{name}.weight" in gradient:
            return name
    raise AttackError("the model has no linear layer with a bias, whose input an update would give away")


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


def _block_before(linear: str, params: Tensors, task: Task) -> "_Block":
    """The convolution whose output enters a linear layer after ReLU and max pooling: tried out on noise."""
    names = [name for name, layer in task.model.named_modules() if isinstance(layer, nn.Conv2d)]
    probe = task.space.noise(2, torch.Generator().manual_seed(0)).to(next(iter(params.values())))
    with torch.no_grad():
        for name in reversed(names):
            conv = task.model.get_submodule(name)
            weight, bias = params.get(f"{name}.weight"), params.get(f"{name}.bias")
            if not isinstance(conv, nn.Conv2d) or weight is None or bias is None or conv.groups != 1 or conv.dilation != (1, 1):
                continue
            before, pooled = inputs_of(task.model, params, probe, [name, linear])
            for size in (1, 2, 3):
                out = F.max_pool2d(F.conv2d(before, weight, bias, conv.stride, conv.padding).relu(), size)
                same = out[0].numel() == pooled[0].numel() and torch.allclose(out.flatten(), pooled.flatten(), atol=1e-5)
                if same and before[0].numel() <= MOST_UNKNOWNS:
                    return _Block(name, conv, weight.double(), bias.double(), before.shape[1:], size)
    raise AttackError("no convolution, ReLU and max pooling lead to the first linear layer, so its input cannot be peeled off")


class _Block:
    """A convolution, ReLU and max pooling: its input from its gradient, for one example."""

    def __init__(self, name: str, conv: nn.Conv2d, weight: Tensor, bias: Tensor, shape: torch.Size, size: int) -> None:
        self.name, self.shape = name, shape
        channels, cells = shape[0], shape[1:].numel()
        basis = torch.eye(shape.numel(), dtype=weight.dtype, device=weight.device).view(-1, *shape)
        out = F.conv2d(basis, weight, None, conv.stride, conv.padding)
        self.rows = out.flatten(2).permute(1, 2, 0)  # (filters, positions, unknowns): the convolution as a matrix
        self.bias, self.channels, self.cells = bias, channels, cells
        # Which cell of the input lies under each offset of the kernel, from 1 on, as 0 is the padding.
        numbers = torch.arange(1.0, cells + 1, device=weight.device).view(1, 1, *shape[1:])
        padding = conv.padding if not isinstance(conv.padding, str) else (conv.kernel_size[0] // 2, conv.kernel_size[1] // 2)
        self.under = F.unfold(numbers, conv.kernel_size, padding=padding, stride=conv.stride)[0].long()
        positions = torch.arange(float(out[0, 0].numel()), device=weight.device).view(1, 1, *out.shape[2:])
        self.windows = F.unfold(positions, size, stride=size)[0].long().T  # (windows, positions in one)

    def inputs(self, gradient: Tensor, pooled: Tensor, slope: Tensor, start: Start | None = None) -> Tensor:
        """The input, flat, given the gradient of the weight, the pooled outputs and the gradient by them."""
        filters = len(self.rows)
        pooled, slope = pooled.view(filters, -1), slope.view(filters, -1)
        active = pooled > 1e-6 * pooled.max()
        scale = pooled[active].square().mean().sqrt()
        outputs = self.rows.new_zeros(self.rows.shape[:2])
        share = self.rows.new_full((*pooled.shape, self.windows.shape[1]), 1 / self.windows.shape[1])
        value, first = self.rows.new_zeros(self.rows.shape[2]), 0
        if start is not None:
            value, first = start.value.double().flatten(), ITERATIONS // 2
            outputs = self.rows @ value + self.bias[:, None]
        for step in range(first, ITERATIONS):
            if step:
                share = self._shares(outputs, pooled, scale * WIDEST * (NARROWEST / WIDEST) ** (step / (ITERATIONS - 1)))
            value = self._solve(share, slope * active, gradient, pooled, outputs, start).clamp_min(0)
            outputs = self.rows @ value + self.bias[:, None]
        return value

    def _shares(self, outputs: Tensor, pooled: Tensor, width: Tensor) -> Tensor:
        """How likely each position is the largest of its window: it equals the pooled output, the others lie below."""
        gap = (pooled[..., None] - outputs[:, self.windows]) / width
        below: Tensor = torch.special.log_ndtr(gap)
        return (-0.5 * gap.square() + below.sum(-1, keepdim=True) - below).softmax(-1)

    def _solve(
        self, share: Tensor, slope: Tensor, gradient: Tensor, pooled: Tensor, outputs: Tensor, start: Start | None
    ) -> Tensor:
        """The input that fits best, given the shares: expected squared errors of the gradient and of the pooled outputs."""
        filters, positions = self.rows.shape[:2]
        routed = self.rows.new_zeros(filters, positions)
        routed[:, self.windows.flatten()] = (share * slope[..., None]).flatten(1)
        equations = self.rows.new_zeros(filters, len(self.under), self.cells + 1)
        spread = self.rows.new_zeros(self.cells + 1, self.cells + 1)
        doubt = torch.diag_embed(share) - share[..., :, None] * share[..., None, :]
        doubt = torch.einsum("fw,fwab->wab", slope.square(), doubt)
        for offset, under in enumerate(self.under):
            equations[:, offset].index_add_(1, under, routed)
            pairs = under[self.windows]
            a, b = pairs[:, :, None].expand_as(doubt), pairs[:, None, :].expand_as(doubt)
            spread.index_put_((a.flatten(), b.flatten()), doubt.flatten(), accumulate=True)
        flat = equations[:, :, 1:].flatten(0, 1)
        size = gradient.square().sum()
        block = (flat.T @ flat + SPREAD * spread[1:, 1:]) / size
        matrix = torch.block_diag(*[block] * self.channels)
        right = (gradient.flatten(2).transpose(0, 1).flatten(1) @ flat / size).flatten()
        # The largest of a window is its pooled output, if that is not 0; any other position that lies above it is pulled down.
        wanted = pooled[..., None].expand_as(share)
        above = (outputs[:, self.windows] > wanted).to(share)
        weight = torch.where(wanted > 0, share + (1 - share) * above, above) * PULL / pooled.square().sum()
        counts = weight > 1e-3 * weight.max()
        rows, kept, aim = self.rows[:, self.windows][counts], weight[counts], (wanted - self.bias[:, None, None])[counts]
        matrix += rows.T @ (rows * kept[:, None])
        right += rows.T @ (kept * aim)
        near = 1e-9 if start is None else start.weight / float(start.value.double().square().sum())
        matrix.diagonal().add_(near)
        if start is not None:
            right += near * start.value.double().flatten()
        return torch.cholesky_solve(right[:, None], torch.linalg.cholesky(matrix))[:, 0]
