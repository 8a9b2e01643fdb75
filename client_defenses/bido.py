"""BiDO: hidden layers that depend little on the input and much on the label (Peng et al. 2022)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional as F

from client_defenses.base import Defense, Memory
from client_defenses.tools.words import lifted
from fl_app.core.local import Step, Tensors
from fl_app.core.spec import SpecError, suggest

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
RIDGE = 1e-5
"""The regulariser of the normalised measure, as in the authors' code."""


@dataclass(frozen=True, kw_only=True)
class BiDO(Defense):
    """Takes the gradient of cross-entropy + lambda_x sum HSIC(x, z) - lambda_y sum HSIC(z, y) over hidden layers z.

    Inputs and layers have a Gaussian kernel exp(-d² / (2 sigma² size)), or sigma="median" that of the median distance;
    `kernel` is that of the labels. normalized=True is the measure of the authors' code (a kernel CCA, at most batch - 1),
    which their weights belong to; False is tr(KHLH) / (n - 1)², as the paper prints it. layers="auto": see
    `hidden_layers`; a list names modules whose outputs are taken. A batch of one depends on nothing: the plain gradient.
    """

    lambda_x: Weight = 0.1
    lambda_y: Weight = 2.0
    layers: Literal["auto"] | tuple[str, ...] = "auto"
    kernel: Literal["linear", "gaussian"] = "linear"
    sigma: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["median"] = 5.0
    normalized: bool = True

    def gradient(self, step: Step, memory: Memory) -> Tensors:
        """The gradient of the loss with both penalties."""
        if not self._counts(step):
            return step.gradient()
        leaves = {name: value.detach().requires_grad_() for name, value in step.params.items()}
        grads = torch.autograd.grad(self.loss(step, leaves), list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, grads, strict=True))

    def differentiable_gradient(self, step: Step) -> Tensors:
        """The same through torch.func, for who matches it: can be differentiated again and vectorised."""
        if not self._counts(step):
            return step.differentiable_gradient()
        return cast(Tensors, grad(lambda params: self.loss(step, params))(step.params))

    def _counts(self, step: Step) -> bool:
        return len(step.x) > 1 and (self.lambda_x > 0 or self.lambda_y > 0)

    def loss(self, step: Step, params: Tensors) -> Tensor:
        """Cross-entropy of a batch with both penalties."""
        with hidden_values(step.model, self.layers) as seen:
            logits = functional_call(step.model, params, (step.x,), tie_weights=False)
        inputs = step.x if step.x.is_floating_point() else lifted(step, "bido").x[..., :-1].mean(1)  # of text its mean word
        return F.cross_entropy(logits, step.y) + self.penalty(inputs, seen, _probabilities(step.y, logits)).to(logits)

    def penalty(self, x: Tensor, hidden: list[Tensor], y: Tensor) -> Tensor:
        """lambda_x sum HSIC(x, z) - lambda_y sum HSIC(z, y), a scalar; x and each z are (batch, ...), y (batch, classes)."""
        inputs = self._kernel(x)
        labels = self._kernel(y) if self.kernel == "gaussian" else centered(_rows(y) @ _rows(y).T)
        measure = normalized_hsic if self.normalized else hsic
        total = inputs.new_zeros(())
        for z in hidden:
            layer = self._kernel(z)
            total = total + self.lambda_x * measure(inputs, layer) - self.lambda_y * measure(layer, labels)
        return total

    def _kernel(self, value: Tensor) -> Tensor:
        """A centered Gaussian kernel, (batch, batch)."""
        rows = _rows(value)
        distances = squared_distances(rows)
        if self.sigma == "median":
            # Without the diagonal, by views: a mask would be of no fixed size, which vmap cannot do.
            apart = distances.detach().flatten()[:-1].view(len(rows) - 1, -1)[:, 1:]
            middle = apart.median()
            width = torch.where(middle > 0, middle, apart.mean()).clamp_min(1e-12)
        else:
            width = distances.new_tensor(2 * self.sigma**2 * rows.shape[1])
        # Less 1, which centering removes anyway: wide kernels are all but constant, and float32 would lose what varies.
        return centered(torch.expm1(-distances / width))


def _rows(value: Tensor) -> Tensor:
    """(batch, ...) -> (batch, size), in float32 or wider: kernels are differences of nearly equal numbers."""
    return value.flatten(1).to(torch.promote_types(value.dtype, torch.float32))


def _probabilities(y: Tensor, logits: Tensor) -> Tensor:
    if y.ndim == 2:
        return y
    return (y[:, None] == torch.arange(logits.shape[1], device=y.device)).to(logits.dtype)  # F.one_hot cannot be vectorised


def squared_distances(rows: Tensor) -> Tensor:
    """Squared distances of all pairs of rows (n, size) -> (n, n), at least 0."""
    rows = rows - rows.mean(0)  # around the mean less is lost to rounding
    squares = rows.square().sum(1)
    return (squares[:, None] + squares[None] - 2 * rows @ rows.T).clamp_min(0)


def centered(kernel: Tensor) -> Tensor:
    """H K H with H = I - 1/n, (n, n)."""
    return kernel - kernel.mean(0, keepdim=True) - kernel.mean(1, keepdim=True) + kernel.mean()


def hsic(k: Tensor, l: Tensor) -> Tensor:  # noqa: E741
    """tr(K H L H) / (n - 1)² of kernels that are centered already: the biased estimate."""
    return (k * l).sum() / (len(k) - 1) ** 2


def normalized_hsic(k: Tensor, l: Tensor) -> Tensor:  # noqa: E741
    """tr(K (K + e n I)^-1 L (L + e n I)^-1) of centered kernels: how many directions the two share, 0 to n - 1."""
    ridge = RIDGE * len(k) * torch.eye(len(k), dtype=k.dtype, device=k.device)
    shared: Tensor = torch.linalg.solve(k + ridge, k) * torch.linalg.solve(l + ridge, l).T
    return shared.sum()


def hidden_layers(model: nn.Module) -> list[str]:
    """The blocks of a model after its first: what enters each of them is a hidden layer.

    Blocks are the parts of a model that have parameters, with each nn.Sequential opened, and so is a block that is the only
    one; normalisation layers are left out. For LeNet these are the inputs of its second and third convolution and of its
    linear layer, for a ResNet those of each residual block and of the linear layer.
    """

    def open_(module: nn.Module, prefix: str) -> Iterator[str]:
        for name, child in module.named_children():
            if isinstance(child, nn.Sequential):
                yield from open_(child, f"{prefix}{name}.")
            elif not isinstance(child, NORMS) and next(child.parameters(), None) is not None:
                yield prefix + name

    blocks = list(open_(model, ""))
    while len(blocks) == 1:
        blocks = list(open_(model.get_submodule(blocks[0]), f"{blocks[0]}."))
    return blocks[1:]


@contextmanager
def hidden_values(model: nn.Module, layers: Literal["auto"] | tuple[str, ...]) -> Iterator[list[Tensor]]:
    """A list that fills with the hidden layers (batch, ...) of each pass through the model."""
    modules, seen = dict(model.named_modules()), []
    names = hidden_layers(model) if layers == "auto" else layers
    for name in names:
        if name not in modules:
            raise SpecError(f"bido: the model has no layer '{name}'; {suggest(name, [key for key in modules if key])}")
    if not names:
        raise SpecError(f"bido finds no hidden layers in this {type(model).__name__}: name some with layers=[...]")

    def before(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.append(args[0])

    def after(_module: nn.Module, _args: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(output)

    hooks = [
        modules[name].register_forward_pre_hook(before) if layers == "auto" else modules[name].register_forward_hook(after)
        for name in names
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
