"""What an attacker can tell of a linear layer from the model alone: where it is, what feeds it, what follows it."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from adversary.base import AttackError
from fl_app.core.local import Tensors, loss_of
from fl_app.core.observation import Task

GREY = 0.5
"""What stands for an example that was not found."""
PROBES = 16
"""Random images on which a model is tried out."""


def linear_layers(model: nn.Module, gradient: Tensors) -> list[str]:
    """The linear layers whose weight and bias an update has, in the order of the model."""
    named = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    return [name for name in named if f"{name}.weight" in gradient and f"{name}.bias" in gradient]


def first_linear(model: nn.Module, gradient: Tensors) -> str:
    """The first linear layer with a bias; AttackError if there is none."""
    found = linear_layers(model, gradient)
    if not found:
        raise AttackError("the model has no linear layer with a bias, whose input an update would give away")
    return found[0]


def first_gated(task: Task, params: Tensors, gradient: Tensors) -> str:
    """The first linear layer with one row per example and a ReLU behind it; AttackError if there is none."""
    for name in linear_layers(task.model, gradient):
        flow = _flow(task, params, name)
        if flow.inputs.ndim == 2 and flow.gated:
            return name
    raise AttackError("the model has no linear layer with a ReLU behind it, whose zeros would tell examples apart")


class Flow(NamedTuple):
    """What enters and leaves a layer for some probes, and the gradient of their loss by what leaves it."""

    inputs: Tensor
    outputs: Tensor
    slopes: Tensor

    @property
    def gated(self) -> bool:
        """Whether negative outputs get no gradient, and positive ones do."""
        off = self.outputs < 0
        return bool((self.slopes[off] == 0).all()) and bool((self.slopes[~off] != 0).float().mean() > 0.5) and bool(off.any())


def _flow(task: Task, params: Tensors, layer: str) -> Flow:
    rng = torch.Generator().manual_seed(0)
    x = task.space.noise(PROBES, rng).to(next(iter(params.values())))
    y = torch.arange(PROBES, device=x.device) % task.num_classes
    return flow(task.model, params, layer, x, y)


def flow(model: nn.Module, params: Tensors, layer: str, x: Tensor, y: Tensor, inputs: Tensor | None = None) -> Flow:
    """What a layer sees of the examples x with the classes y; with `inputs`, these enter it instead."""
    kept: list[Tensor] = []

    def before(_layer: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        kept.append((given[0] if inputs is None else inputs).detach())
        return (kept[0],)

    def after(_layer: nn.Module, _given: tuple[Tensor, ...], out: Tensor) -> Tensor:
        kept.append(out.detach().requires_grad_())
        return kept[1]

    module = model.get_submodule(layer)
    handles = [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    fixed = {name: value.detach() for name, value in params.items()}
    try:
        loss = loss_of(model, fixed, x, y) * len(x)
    finally:
        for handle in handles:
            handle.remove()
    (slopes,) = torch.autograd.grad(loss, kept[1])
    return Flow(kept[0], kept[1].detach(), slopes)


class Pixels(NamedTuple):
    """How a layer's flat input follows from an image, pixel by pixel: input = shift + scale * image."""

    shift: Tensor
    scale: Tensor

    def image(self, inputs: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The images (..., *shape) of inputs (..., pixels)."""
        return ((inputs - self.shift) / self.scale).reshape(*inputs.shape[:-1], *shape)


def pixels_into(task: Task, params: Tensors, layer: str) -> Pixels | None:
    """How a layer reads the image itself, normalised or not; None if something else lies in front of it."""
    rng = torch.Generator().manual_seed(0)
    like = next(iter(params.values()))
    noise = task.space.noise(2, rng).to(like)
    x = torch.cat([torch.zeros_like(noise[:1]), torch.ones_like(noise[:1]), noise])
    y = torch.zeros(len(x), dtype=torch.int64, device=like.device)
    entered = flow(task.model, params, layer, x, y).inputs
    entered = entered.flatten(1).double()
    if entered.shape != x.flatten(1).shape:
        return None
    shift, scale = entered[0], entered[1] - entered[0]
    same = torch.allclose(entered[2:], shift + scale * x[2:].flatten(1).double(), atol=1e-5)
    return Pixels(shift, scale) if same and bool((scale != 0).all()) else None


def padded(found: Tensor, examples: int) -> Tensor:
    """The images found (n, *shape), and grey ones for the examples that were not: (examples, *shape)."""
    return torch.cat([found, found.new_full((examples - len(found), *found.shape[1:]), GREY)])


def classes_of(task: Task, params: Tensors, layer: str, inputs: Tensor, slopes: Tensor) -> Tensor:
    """The class of each example, given what enters a layer (examples, n) and the gradient by what leaves it (examples, m).

    From the layer on the network is known, so the gradient of each class is: the nearest in direction is the true one.
    """
    examples, classes = len(inputs), task.num_classes
    like = next(iter(params.values()))
    blank = torch.zeros((1, *task.space.shape)).to(like).expand(examples * classes, *task.space.shape)
    y = torch.arange(classes, device=like.device).repeat(examples)
    tried = flow(task.model, params, layer, blank, y, inputs.to(like).repeat_interleave(classes, 0))
    return nn.functional.cosine_similarity(tried.slopes.view(examples, classes, -1), slopes[:, None], dim=-1).argmax(1)
