"""Against latent perturbation: the attacker who knows the law of the noise puts its mean on the latent of his own model."""

from copy import deepcopy

import torch
from torch import Tensor, nn

import client_defenses
from client_defenses.base import Chain
from client_defenses.latent_perturbation import LatentPerturbation
from client_defenses.tools.cut import cut_layer
from fl_app.core.observation import Task


def with_mean_noise(model: nn.Module, layer: str, mu: Tensor | float, input_shape: tuple[int, ...]) -> nn.Module:
    """A copy of a model, with the same names of parameters, whose layer's output (batch, *latent) is moved by mu (*latent).

    `layer` as in the defense, also "auto". What clients send are gradients at noisy latents, so a guess has to be matched at
    their mean; noise around it is left to the objective. It also is the model to test with: a predictor that has learnt from
    latents moved by mu expects them there.
    """
    moved = deepcopy(model)
    params = {name: value.detach() for name, value in moved.named_parameters()}
    some = next(iter(params.values()))
    x = torch.zeros(2, *input_shape, dtype=some.dtype, device=some.device)
    found = cut_layer(moved, params, x, layer)

    def after(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
        return output + (mu.to(output) if isinstance(mu, Tensor) else mu)

    moved.get_submodule(found).register_forward_hook(after)
    return moved


def informed_model(task: Task, defense: str) -> nn.Module:
    """The model that an attacker who knows the defense's spec differentiates through; the task's own where nothing changes.

    Learned noise is private: its mean is taken to be where it started. The penalty's gradient needs the client's decoder,
    which the attacker lacks, so it stays out.
    """
    known = client_defenses.build(defense)
    parts = known.parts if isinstance(known, Chain) else (known,)
    model = task.model
    for part in parts:
        if isinstance(part, LatentPerturbation) and part.mu != 0:
            model = with_mean_noise(model, part.layer, part.mu, task.input_shape)
    return model
