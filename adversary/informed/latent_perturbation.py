"""Latent perturbation: an informed attacker puts the mean of the noise on the latent of its own model."""

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adversary.base import Facts
from adversary.informed.expected import granted, parts_of
from adversary.informed.variant import Variant, with_observer
from adversary.search.observers import Observer
from client_defenses.latent_perturbation import LatentPerturbation
from client_defenses.tools.cut import cut_layer
from fl_app.core.observation import Observation, Task


@dataclass(frozen=True, kw_only=True)
class MeanLatent(Observer):
    """The mean of the granted defense's noise on the latent.

    Learned noise is private: its mean is taken to be where it started. The penalty's gradient needs the client's decoder,
    which the attacker lacks, so it stays out.
    """

    def model(self, model: nn.Module, seen: Observation, task: Task) -> nn.Module:
        """The model with its latent moved."""
        for part in parts_of(granted(seen, "the observer 'mean_latent'")):
            if isinstance(part, LatentPerturbation) and part.mu != 0:
                model = with_mean_noise(model, part.layer, part.mu, task.space.shape)
        return model


def variants(defense: LatentPerturbation, facts: Facts) -> list[Variant]:
    """Puts the mean of the known noise on the latent of its own model."""
    return [
        Variant(
            "puts the mean of the known noise on the latent of its own model",
            lambda attack: with_observer(attack, MeanLatent()),
            why_not="" if defense.mu else "the noise has mean 0, so its mean moves nothing",
        )
    ]


def with_mean_noise(model: nn.Module, layer: str, mu: Tensor | float, input_shape: tuple[int, ...]) -> nn.Module:
    """A copy of a model, with the same names of parameters, whose layer's output (batch, *latent) is moved by mu (*latent).

    `layer` as in the defense, also "auto". What clients send are gradients at noisy latents, so a reconstruction has to be
    matched at their mean; noise around it is left to the objective. It also is the model to test with: a predictor that has
    learnt from latents moved by mu expects them there.
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
