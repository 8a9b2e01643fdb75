"""Latent perturbation: an informed attacker puts the mean of the noise on the latent of its own model."""

from copy import deepcopy
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from adversary.base import AttackError, Facts
from adversary.entries import Ignoring
from adversary.informed.expected import granted, parts_of
from adversary.informed.variant import Variant, with_objective, with_observer, with_tv
from adversary.labels import last_layer, last_weight
from adversary.objectives import TINY
from adversary.search.matching import Matching
from adversary.search.observers import Observer
from client_defenses.latent_perturbation import LatentPerturbation
from client_defenses.tools.cut import cut_layer
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task

PRIOR = 1e-3
"""The most total variation where the match is as if there were no noise (ours, chosen on 4 MNIST images)."""


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


@dataclass(frozen=True, kw_only=True)
class ReadFeatures(Observer):
    """What entered the last layer, noise and all, is read off its gradient; what the reconstruction would give stays out.

    Of one example the layer's gradient is (p - y) h' and that of its bias p - y, so h is known exactly, and with it what goes
    back from the last layer: the layers before it can be matched as if there were no noise.
    """

    def draw(self, seen: Observation, task: Task) -> Tensors:
        """The features h of one example, which the search cannot move."""
        weight, bias = last_layer(seen.update, task.num_classes)
        if bias is None or seen.num_examples != 1 or seen.rule.kind != "gradient":
            raise AttackError("features are read off the gradient of one example and a last layer with a bias")
        name = last_weight(seen.update, task.num_classes).removesuffix("weight")
        return {f"{name}features": bias @ weight / bias.square().sum().clamp_min(TINY)}

    def weights(self, params: Tensors, unknown: Tensors, progress: float) -> Tensors:
        """The features are among the weights, as these differ from target to target, too."""
        return {**params, **unknown}

    def model(self, model: nn.Module, seen: Observation, task: Task) -> nn.Module:
        """A copy whose last layer reads `features` in place of what comes in, which keeps its derivative."""
        changed = deepcopy(model)
        name = last_weight(seen.update, task.num_classes)
        layer = changed.get_submodule(name.removesuffix(".weight"))
        layer.register_parameter("features", nn.Parameter(torch.zeros_like(seen.update[name][0])))

        def before(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (inputs[0] + (cast(Tensor, layer.features) - inputs[0]).detach(),)

        layer.register_forward_pre_hook(before)
        return changed


def variants(defense: LatentPerturbation, facts: Facts) -> list[Variant]:
    """Reads the noisy latent off the last layer's gradient; or puts the mean of the known noise on its own model's latent."""

    def reads(attack: Matching) -> Matching:
        attack = with_objective(attack, Ignoring(objective=attack.objective, layers=("last",)))
        return with_tv(with_observer(with_observer(attack, MeanLatent()), ReadFeatures()), most=PRIOR)

    return [
        Variant(
            "reads what entered the last layer, with the noise in it, off its gradient, and matches the layers before it",
            reads,
            "reads the latent",
            why_not="" if facts.examples == 1 else "features can be read off the gradient of one example only",
        ),
        Variant(
            "puts the mean of the known noise on the latent of its own model",
            lambda attack: with_observer(attack, MeanLatent()),
            "mean",
            why_not="" if defense.mu else "the noise has mean 0, so its mean moves nothing",
        ),
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
