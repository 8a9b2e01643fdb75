"""Models: one file per family, all of them listed here."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import nn

from fl_app.core import plugins, spec
from fl_app.core.local import Tensors
from fl_app.models.bow import bow
from fl_app.models.convnet import convnet
from fl_app.models.fronts import FRONTS
from fl_app.models.imagenet import resnet50
from fl_app.models.latent import latent_net
from fl_app.models.layers import Normalize
from fl_app.models.lenet import lenet, lenet5
from fl_app.models.linear import linear
from fl_app.models.minilm import minilm
from fl_app.models.mlp import mlp
from fl_app.models.resnet import resnet10, resnet18, resnet34
from fl_app.models.text import bert, gpt
from fl_app.models.vit import vit

MODELS: dict[str, Callable[..., nn.Module]] = {
    "bert": bert,
    "bow": bow,
    "convnet": convnet,
    "gpt": gpt,
    "latent_net": latent_net,
    "lenet": lenet,
    "lenet5": lenet5,
    "linear": linear,
    "minilm": minilm,
    "mlp": mlp,
    "resnet10": resnet10,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "vit": vit,
}


FLAT = ("linear", "mlp")
"""Models that take rows of a table as well as images."""
TEXT = ("bert", "bow", "gpt", "minilm")
"""Models that take token ids."""


def build(
    text: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    seed: int = 0,
    normalize: tuple[Sequence[float], Sequence[float]] | None = None,
    front: str = "",
) -> nn.Module:
    """Build a model for inputs in [0, 1]; `normalize` = (mean, std) by channel adds that as the first layer.

    Published weights bring a normalisation of their own, which is added in its place.

    `front` is the spec of a block before all else (`fronts`). Of text, `input_shape` is (length, vocabulary), and there is
    nothing to normalise.
    """
    _check_shape(text, input_shape, front)
    # torch's initialisers draw from the global generator: borrow it, and leave it as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = spec.build_one("model", text, MODELS, input_shape, num_classes, base=nn.Module)
        if (name := spec.single("model", text).name) not in MODELS:
            _check_answer(name, net, input_shape, num_classes)
    before: dict[str, nn.Module] = {}
    if front:
        before["front"] = spec.build_one("block", front, FRONTS, input_shape)
    normalize = getattr(net, "normalization", normalize)  # what published weights are used to
    if normalize is not None and len(input_shape) != 2:
        before["normalize"] = Normalize(*normalize, flat=len(input_shape) == 1)
    return nn.Sequential(OrderedDict(**before, net=net)) if before else net


def _check_shape(text: str, input_shape: tuple[int, ...], front: str) -> None:
    name = spec.single("model", text).name
    what, fits = {1: ("rows of a table", FLAT), 2: ("text", TEXT)}.get(len(input_shape), ("images", ()))
    if front and fits:
        raise spec.SpecError(f"the block {front} takes images, and these examples are {what}: use an honest server")
    if name not in MODELS or (name in fits if fits else name not in TEXT):
        return
    takes, others = ("text", ("lenet5",)) if name in TEXT else ("images", ())
    raise spec.SpecError(f"{name} takes {takes}, and these examples are {what}: use {' or '.join(fits or others)}")


def _check_answer(name: str, net: nn.Module, input_shape: tuple[int, ...], num_classes: int) -> None:
    """Refuse a model from outside that has nothing to train, or does not answer with a number per class."""
    if not any(value.requires_grad for value in net.parameters()):
        raise spec.SpecError(f"the model {name} has no weights to train")
    training = net.training
    with plugins.explained("model", name), torch.no_grad():
        zeros = torch.zeros(2, input_shape[0], dtype=torch.int64) if len(input_shape) == 2 else torch.zeros(2, *input_shape)
        out = net.eval()(zeros)
        net.train(training)
        if out.shape != (2, num_classes):
            shape = tuple(out.shape)
            raise spec.SpecError(f"the model {name} answers two inputs with the shape {shape}, not (2, {num_classes})")


def size_of(text: str, input_shape: tuple[int, ...], num_classes: int, front: str = "") -> int:
    """How many parameters a model has, without making room for them; 0 if its code cannot tell without."""
    _check_shape(text, input_shape, front)
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            net = spec.build_one("model", text, MODELS, input_shape, num_classes, base=nn.Module)
            block = spec.build_one("block", front, FRONTS, input_shape) if front else nn.Identity()
    except spec.SpecError as error:
        if not isinstance(error.__cause__, RuntimeError):
            raise
        return 0  # code from outside that computes with its own weights while it is made; else `build` says it too
    return sum(value.numel() for part in (net, block) for value in part.parameters())


def parameters_of(model: nn.Module) -> Tensors:
    """The detached parameters of a model, by name."""
    return {name: value.detach() for name, value in model.named_parameters()}


__all__ = ["MODELS", "build", "parameters_of", "size_of"]
