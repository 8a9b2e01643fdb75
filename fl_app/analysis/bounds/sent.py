"""What a client sends as a function of its examples, to be differentiated."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from client_defenses import Defense, Memory
from client_defenses.none import NoDefense
from client_defenses.tools.noise import Noise
from fl_app.core.local import LocalRule, Step, Tensors, local_update

Sent = Callable[[Tensor], Tensor]
"""x (batch, *shape) -> all entries of what is sent, (entries,)."""


KINKED = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.Hardtanh, nn.MaxPool1d, nn.MaxPool2d, nn.AdaptiveMaxPool2d)
"""Layers with kinks, at which the gradient of a network jumps."""


def flat(update: Tensors) -> Tensor:
    """All entries as one vector."""
    return torch.cat([value.flatten() for value in update.values()])


def plain(model: nn.Module, params: Tensors, y: Tensor, rule: LocalRule) -> Sent:
    """The update without any defense."""
    return lambda x: flat(local_update(model, params, x, y, rule, Step.differentiable_gradient))


def whitened(model: nn.Module, params: Tensors, y: Tensor, defense: Defense, noise: Noise, x: Tensor, seed: int) -> Sent:
    """A function whose Jacobian J at x has the Fisher information of what is sent as J' J.

    It is what the noise is added to, in units of the noise: an entry of normal noise of std s, and of Laplace noise of scale
    s, has the information 1 / s² about its mean. Noise whose size depends on x tells of x by that too: n entries of std s
    have the information 2 n about log s.
    """

    def before(inputs: Tensor) -> Tensors:
        return defense.before_noise(Step(params, model, inputs, y), Memory.fresh(seed))

    if not noise.relative:
        return lambda inputs: flat(before(inputs)) / noise.scale
    fixed = {name: noise.relative * value.detach().square().mean().sqrt() for name, value in before(x).items()}

    def both(inputs: Tensor) -> Tensor:
        means = {name: value for name, value in before(inputs).items() if bool(fixed[name] > 0)}
        sizes = [math.sqrt(value.numel() / 2) * value.square().mean().log() for value in means.values()]
        return torch.cat([flat({name: value / fixed[name] for name, value in means.items()}), torch.stack(sizes)])

    return both


def is_smooth(model: nn.Module) -> bool:
    """Whether no layer is known to have kinks; what a model does without layers is not seen."""
    return not any(isinstance(layer, KINKED) for layer in model.modules())


def why_not_noise(defense: Defense, rule: LocalRule, *, aggregate: bool) -> str:
    """Why nothing follows from the noise of what was sent; empty if something does."""
    if isinstance(defense, NoDefense):
        return "there is no noise"
    if defense.noise_law() is None:
        return (
            "the defense declares no law of noise on all that is sent. Where some entries are sent as they are, or draws act "
            "in another way than by addition, the information has no such limit"
        )
    if rule.steps > 1 or rule.optimizer != "sgd":
        return "noise in several local steps, or before Adam, does not come out as noise of a known law on what is sent"
    if aggregate:
        return "an aggregate is a sum over clients, whose noise is not looked at here: use individual updates"
    return ""
