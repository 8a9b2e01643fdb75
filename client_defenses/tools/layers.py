"""Find a linear layer of a model, and see what enters it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp, vmap

from fl_app.core.local import Tensors
from fl_app.core.spec import SpecError, suggest

Features = Callable[[Tensor], Tensor]
ROOM = 2**20
"""Numbers of x that go through the model at once: more fall out of the cache."""


def linear_layer(model: nn.Module, name: str = "auto") -> tuple[str, nn.Linear]:
    """(name, layer) of a linear layer; "auto" is the last one."""
    layers = {key: module for key, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not layers:
        raise SpecError(f"{type(model).__name__} has no linear layer, which this defense needs")
    if name != "auto" and name not in layers:
        raise SpecError(f"the model has no linear layer '{name}'; {suggest(name, ['auto', *layers])}")
    key = list(layers)[-1] if name == "auto" else name
    return key, layers[key]


def watched(
    model: nn.Module, params: Tensors, layer: nn.Module, name: str
) -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]:
    """Map x to (what enters the layer, (batch, features); what leaves it; the model's output), differentiably."""

    def run(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen: list[tuple[Tensor, Tensor]] = []
        hook = layer.register_forward_hook(lambda _, args, output: seen.append((args[0], output)))
        try:
            logits = functional_call(model, params, (x,), tie_weights=False)
        finally:
            hook.remove()
        if len(seen) != 1 or seen[0][0].ndim != 2:
            shapes = [tuple(inputs.shape) for inputs, _ in seen]
            raise SpecError(f"'{name}' must see one vector for each example, once, not inputs of shape {shapes}: name another")
        return (*seen[0], logits)

    return run


def jacobian_norms(features: Features, x: Tensor) -> Tensor:
    """|d r_i / d x| of every entry i of the features (batch, n), for each example: float32 (batch, n).

    Many entries in one backward pass. With batch statistics it is the gradient of the batch's sum of r_i, as in the original.
    """
    r, pull = vjp(features, x)[:2]
    batch, n = r.shape
    norms = torch.empty(batch, n, device=x.device)
    for entries in torch.arange(n, device=x.device).split(max(1, ROOM // x.numel())):
        chosen = torch.zeros(len(entries), batch, n, dtype=r.dtype, device=x.device)
        chosen.scatter_(2, entries.view(-1, 1, 1).expand(-1, batch, 1), 1)
        (rows,) = vmap(pull)(chosen)
        norms[:, entries] = rows.flatten(2).float().norm(dim=2).T
    return norms


def sketched_norms(features: Features, x: Tensor, probes: Tensor) -> Tensor:
    """Estimates of the same norms from directional derivatives: E (J v)_i^2 = |J_i|^2 for independent signs v.

    Probes are (k, *shape of one example), shared by the batch, entries -1 or 1; the relative error is about 1 / sqrt(2 k).
    """
    total = torch.zeros(())
    for some in probes.to(x).split(max(1, ROOM // x.numel())):
        moved = vmap(lambda v: jvp(features, (x,), (v.expand_as(x),))[1], randomness="same")(some)
        total = total.to(x.device) + moved.float().square().sum(0)
    return (total / len(probes)).sqrt()
