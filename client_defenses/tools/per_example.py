"""The sum of clipped per-example gradients, without holding one gradient for each example where a formula can avoid it.

Layer formulas (Goodfellow 2015; Lee & Kifer 2021; "book-keeping" of Bu et al. 2023): one forward and one backward pass give
the input a and the output gradient d of every layer, hence the norm of each example's gradient and the weighted sum of all.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from fl_app.core.local import Step, Tensors
from fl_app.core.spec import SpecError

CHUNK = 2**24
"""Numbers that a temporary of per-example values may hold: 64 MB of float32."""
KEEP = 2**22
"""Numbers of a layer's per-example gradients that are kept rather than computed twice."""


class Rows(NamedTuple):
    """Of one layer's gradient, each example keeps a single row: `kept` is int64 (batch,)."""

    layer: str
    kept: Tensor

    def mask(self, outputs: int) -> Tensor:
        """1 where a row is kept, bool (batch, outputs)."""
        return F.one_hot(self.kept, outputs).bool()


class Use(NamedTuple):
    """One call of a layer: input (batch, ...), output (batch, ...), and the gradient of the summed loss by the output."""

    name: str
    module: Any
    inputs: Tensor
    version: int
    output: Tensor
    delta: Tensor

    @property
    def positions(self) -> int:
        """How often the weight is applied to one example: tokens or output pixels."""
        return self.output[0].numel() // len(self.module.weight)


def refuse_batch_norm(model: nn.Module, who: str) -> None:
    """With batch statistics an example's gradient depends on the others, so bounding it bounds nothing."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or not module.track_running_stats):
            raise SpecError(
                f"{who} needs a gradient for each example, and '{name}' ({type(module).__name__}) mixes the examples of a "
                "batch: use a model without batch statistics, such as resnet18(norm='group') or convnet(norm='group')"
            )


def clipped_sum(step: Step, bound: float, rows: Rows | None = None) -> Tensors:
    """Sum over examples of g / max(1, norm(g) / bound), by layer formulas if the model allows it."""
    return by_layers(step, bound, rows) or by_vmap(step, bound, rows)


def factors(squared: Tensor, bound: float) -> Tensor:
    """1 / max(1, norm / bound) of squared norms, float32 (batch,)."""
    return 1 / torch.clamp(squared.sqrt() / bound, min=1)


def by_vmap(step: Step, bound: float, rows: Rows | None = None) -> Tensors:
    """The clipped sum from explicit per-example gradients, some examples at a time: slower, for any model, differentiable."""
    size = max(1, 4 * CHUNK // sum(value.numel() for value in step.params.values()))
    total = {name: torch.zeros_like(value) for name, value in step.params.items()}
    for start in range(0, len(step.x), size):
        part = slice(start, start + size)
        grads = Step(step.params, step.model, step.x[part], step.y[part]).per_example_gradients()
        if rows:
            for name in (f"{rows.layer}.weight", f"{rows.layer}.bias"):
                if name in grads:
                    mask = Rows(rows.layer, rows.kept[part]).mask(grads[name].shape[1])
                    grads[name] = grads[name] * mask.view(*mask.shape, *[1] * (grads[name].ndim - 2))
        squared = torch.stack([value.flatten(1).float().square().sum(1) for value in grads.values()]).sum(0)
        factor = factors(squared, bound)
        for name, value in grads.items():
            total[name] = total[name] + torch.tensordot(factor.to(value), value, 1)
    return total


def by_layers(step: Step, bound: float, rows: Rows | None = None) -> Tensors | None:
    """The clipped sum by layer formulas, or None if a parameter is used in a way that has none."""
    uses = _uses(step)
    if uses is None:
        return None
    if rows:
        uses = [u._replace(delta=u.delta * rows.mask(u.delta.shape[1])) if u.name == rows.layer else u for u in uses]
    # What is cheap to have for each example is kept; the rest gives its norm alone and is summed afterwards.
    whole: list[Tensors | None] = []
    squared = torch.zeros(len(step.x), device=step.x.device)
    for use in uses:
        grads = _own_gradients(use)
        whole.append(grads)
        if grads is None:
            squared += _norms(use)
        else:
            for value in grads.values():
                squared += value.flatten(1).float().square().sum(1)
    factor = factors(squared, bound)
    total: Tensors = {}
    for use, grads in zip(uses, whole, strict=True):
        if grads is None:
            total.update(_weighted_sum(use, factor))
        else:
            total.update({name: torch.tensordot(factor.to(value), value, 1) for name, value in grads.items()})
    return {name: total[name].view_as(value) for name, value in step.params.items()}


def _has_formula(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv2d):
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if isinstance(module, nn.Embedding):
        return module.padding_idx is None and module.max_norm is None and not module.sparse and not module.scale_grad_by_freq
    return isinstance(module, nn.Linear | nn.LayerNorm | nn.GroupNorm)


def _uses(step: Step) -> list[Use] | None:
    """Run the model forward and backward and note every layer's part; None if some parameter escapes the formulas.

    A layer's parameters must be used by that layer alone, once, on inputs whose first dimension is the batch.
    """
    model = step.model
    layers = {name: module for name, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))}
    names = {f"{name}.{key}" for name, layer in layers.items() for key, _ in layer.named_parameters(recurse=False)}
    tied = len(list(model.parameters())) < len(list(model.named_parameters(remove_duplicate=False)))
    if names != set(step.params) or tied or not all(map(_has_formula, layers.values())):
        return None
    uses: list[Use] = []

    def note(name: str, layer: nn.Module, inputs: Tensor, output: Tensor) -> Tensor:
        # The weights need no gradient here, so the graph begins at the first layer's output.
        output.requires_grad_()
        uses.append(Use(name, layer, inputs.detach(), inputs._version, output, output))
        return output.clone()  # the model may change it in place, as residual blocks do

    hooks = [
        layer.register_forward_hook(lambda layer, args, output, name=name: note(name, layer, args[0], output))
        for name, layer in layers.items()
    ]
    try:
        fixed = {name: value.detach() for name, value in step.params.items()}
        with torch.enable_grad():
            logits = functional_call(model, fixed, (step.x.detach(),), tie_weights=False)
            if logits.ndim > 2:
                return None  # a language model, whose loss is a mean over tokens
            loss = F.cross_entropy(logits, step.y, reduction="sum")
    finally:
        for hook in hooks:
            hook.remove()
    once = sorted(use.name for use in uses) == sorted(layers)
    intact = all(use.inputs._version == use.version and len(use.inputs) == len(use.output) == len(step.x) for use in uses)
    if not once or not intact:
        return None
    deltas = torch.autograd.grad(loss, [use.output for use in uses], materialize_grads=True)
    return [use._replace(delta=delta) for use, delta in zip(uses, deltas, strict=True)]


def _tokens(use: Use) -> tuple[Tensor, Tensor]:
    """Input (batch, positions, inputs) and output gradient (batch, positions, outputs) of a linear layer."""
    inputs, delta = use.inputs, use.delta
    return inputs.reshape(len(inputs), -1, inputs.shape[-1]), delta.reshape(len(delta), -1, delta.shape[-1])


def _bias(use: Use) -> Tensor:
    """Per-example gradients of a bias, (batch, outputs)."""
    if isinstance(use.module, nn.Linear):
        return _tokens(use)[1].sum(1)
    return use.delta.flatten(2).sum(2)


def _conv_weights(layer: nn.Conv2d, inputs: Tensor, delta: Tensor) -> Tensor:
    """Per-example gradients of a convolution's weight, (batch, *weight shape): examples become groups of one convolution."""
    batch, groups = len(inputs), len(inputs) * layer.groups
    shape = (batch * layer.weight.shape[0], *layer.weight.shape[1:])
    flat, out = inputs.reshape(1, -1, *inputs.shape[2:]), delta.reshape(1, -1, *delta.shape[2:])
    weights: Tensor = conv2d_weight(flat, shape, out, layer.stride, layer.padding, layer.dilation, groups)
    return weights.view(batch, *layer.weight.shape)


def _own_gradients(use: Use) -> Tensors | None:
    """Per-example gradients of a layer by parameter name, (batch, *shape), where they are small and the cheaper way."""
    layer, name = use.module, use.name
    if isinstance(layer, nn.LayerNorm | nn.GroupNorm):
        if isinstance(layer, nn.GroupNorm):
            scaled = use.delta * F.group_norm(use.inputs, layer.num_groups, eps=layer.eps)
            grads = {"weight": scaled.flatten(2).sum(2), "bias": use.delta.flatten(2).sum(2)}
        else:
            scaled = use.delta * F.layer_norm(use.inputs, layer.normalized_shape, eps=layer.eps)
            shape = (len(scaled), -1, *layer.normalized_shape)
            grads = {"weight": scaled.view(shape).sum(1), "bias": use.delta.reshape(shape).sum(1)}
        return {f"{name}.{key}": value for key, value in grads.items() if getattr(layer, key) is not None}
    if not isinstance(layer, nn.Conv2d) or len(use.inputs) * layer.weight.numel() > KEEP or _ghost_pays(use):
        return None
    grads = {f"{name}.weight": _conv_weights(layer, use.inputs, use.delta)}
    return grads if layer.bias is None else {**grads, f"{name}.bias": _bias(use)}


def _ghost_pays(use: Use) -> bool:
    """Whether inner products over pairs of positions cost less than the gradient itself."""
    outputs, inputs = use.module.weight.flatten(1).shape
    return getattr(use.module, "groups", 1) == 1 and bool(use.positions * (inputs + outputs) < inputs * outputs)


def _norms(use: Use) -> Tensor:
    """Squared norms of the per-example gradients of a linear or convolution layer, float32 (batch,), in bounded memory."""
    layer = use.module
    if isinstance(layer, nn.Embedding):
        # Rows of equal ids add up: |sum over equal ids of d|^2 = sum over pairs of equal ids of <d_i, d_j>.
        delta, ids = use.delta.reshape(len(use.delta), -1, use.delta.shape[-1]).float(), use.inputs.flatten(1)
        return ((ids[:, :, None] == ids[:, None]) * (delta @ delta.transpose(1, 2))).sum((1, 2))
    ghost = _ghost_pays(use)
    unfolded = layer.weight[0].numel() * use.positions if isinstance(layer, nn.Conv2d) else 0
    size = max(1, CHUNK // (unfolded + 2 * use.positions**2 if ghost else layer.weight.numel()))
    squared = []
    for part in (slice(start, start + size) for start in range(0, len(use.inputs), size)):
        if isinstance(layer, nn.Conv2d):
            inputs, delta = use.inputs[part], use.delta[part]
            if not ghost:
                squared.append(_conv_weights(layer, inputs, delta).flatten(1).float().square().sum(1))
                continue
            assert not isinstance(layer.padding, str)
            patches = F.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
            inputs, delta = patches.transpose(1, 2), delta.flatten(2).transpose(1, 2)
        else:
            inputs, delta = (value[part] for value in _tokens(use))
        inputs, delta = inputs.float(), delta.float()  # products of two inner products overflow half precision
        if inputs.shape[1] == 1:
            squared.append(inputs.square().sum((1, 2)) * delta.square().sum((1, 2)))
        elif ghost:
            squared.append(((inputs @ inputs.transpose(1, 2)) * (delta @ delta.transpose(1, 2))).sum((1, 2)))
        else:
            squared.append((delta.transpose(1, 2) @ inputs).square().sum((1, 2)))
    result = torch.cat(squared)
    return result if layer.bias is None else result + _bias(use).float().square().sum(1)


def _weighted_sum(use: Use, factor: Tensor) -> Tensors:
    """Sum over examples of factor * gradient for a linear or convolution layer, by parameter name."""
    layer, name = use.module, use.name
    factor = factor.to(use.delta)
    delta = use.delta * factor.view(-1, *[1] * (use.delta.ndim - 1))
    if isinstance(layer, nn.Embedding):
        rows = torch.zeros_like(layer.weight, dtype=delta.dtype, requires_grad=False)
        return {f"{name}.weight": rows.index_add(0, use.inputs.flatten(), delta.flatten(0, -2))}
    if isinstance(layer, nn.Conv2d):
        geometry = (layer.stride, layer.padding, layer.dilation, layer.groups)
        total = conv2d_weight(use.inputs, layer.weight.shape, delta, *geometry)
    else:
        total = delta.flatten(0, -2).T @ use.inputs.flatten(0, -2)
    sums = {f"{name}.weight": total}
    return sums if layer.bias is None else {**sums, f"{name}.bias": torch.tensordot(factor, _bias(use), 1)}
