"""Where a model is cut into encoder and predictor, and passes through it that change the latent in between."""

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fl_app.core.local import Tensors
from fl_app.core.spec import SpecError, suggest

Change = Callable[[Tensor], Tensor]
POOLS = (nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd)
ADAPTIVE = (nn.modules.pooling._AdaptiveAvgPoolNd, nn.modules.pooling._AdaptiveMaxPoolNd)
_FOUND: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def cut_layer(model: nn.Module, params: Tensors, x: Tensor, name: str = "auto") -> str:
    """The full name of the module whose output is the latent; x is (batch, *shape), of which two examples show the way.

    "auto" is the last module whose output still has places, (batch, ..., ...), pooling left out: `encoder` of latent_net, the
    last activation of LeNet, LeNet-5 and ConvNet, `layer4` of a ResNet, the last norm of a ViT. In a network of vectors alone
    it is the last module before the one that gives the classes. A module that has seen no weights yet is no latent.
    """
    if name != "auto":
        valid = [key for key, _ in model.named_modules() if key]
        full = name if name in valid else f"net.{name}"  # our models sit behind their normalisation under this name
        if full not in valid:
            raise SpecError(f"the model has no layer '{name}'; {suggest(name, ['auto', *valid])}")
        return full
    if model not in _FOUND:
        _FOUND[model] = _search(model, params, x[:2])
    return _FOUND[model]


@torch.no_grad()
def _search(model: nn.Module, params: Tensors, x: Tensor) -> str:
    outputs: list[tuple[str, nn.Module, Tensor]] = []
    names = {module: name for name, module in model.named_modules() if name}

    def after(module: nn.Module, _args: object, output: object) -> None:
        if isinstance(output, Tensor):
            outputs.append((names[module], module, output))

    hooks = [module.register_forward_hook(after) for module in names]
    try:
        logits = functional_call(model, params, (x,), tie_weights=False)
    finally:
        for hook in hooks:
            hook.remove()
    called = [name for name, _, _ in outputs]
    places, vectors, weighted = "", "", False
    for name, module, output in outputs:
        weighted = weighted or next(module.parameters(), None) is not None
        if not weighted or output is logits or called.count(name) > 1 or isinstance(module, POOLS + ADAPTIVE):
            continue
        if output.ndim > 2:
            places = name
        elif not isinstance(module, nn.Flatten):
            vectors = name
    if not places and not vectors:
        raise SpecError(f"this {type(model).__name__} has no hidden layer to cut it at: it goes from inputs to classes at once")
    return places or vectors


def passed(model: nn.Module, params: Tensors, x: Tensor, layer: str, change: Change) -> tuple[Tensor, Tensor]:
    """(the model's output, the changed latent) of x, where `change` maps the latent (batch, ...) to one of its shape."""
    seen: list[Tensor] = []

    def after(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
        if not isinstance(output, Tensor) or output.ndim < 2 or len(output) != len(x):
            raise SpecError(f"'{layer}' gives no tensor with a row for each example, so it can take no noise: name another")
        seen.append(change(output))
        return seen[-1]

    hook = model.get_submodule(layer).register_forward_hook(after)
    try:
        logits: Tensor = functional_call(model, params, (x,), tie_weights=False)
    finally:
        hook.remove()
    if len(seen) != 1:
        raise SpecError(f"'{layer}' runs {len(seen)} times in a pass, and a latent must be there once: name another layer")
    return logits, seen[0]
