"""Trap weights (Boenisch et al., "When the Curious Abandon Honesty", EuroS&P 2023): neurons that few examples activate."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fl_app.core.local import LocalRule, Tensors
from fl_app.core.seeds import generator
from strategies.crafts.base import Craft, CraftError, Scene

SOME = 1000
"""Public examples by which the factor is chosen."""


@dataclass(frozen=True, kw_only=True)
class Traps(Craft):
    """Trap weights: half of a neuron's weights are negative, the others the same but smaller, so that few examples pass."""

    readout: ClassVar[str] = "traps"
    trains: ClassVar[bool] = False
    spread: Annotated[float, Field(gt=0, le=100)] = 0.5
    """Standard deviation of the weights."""
    rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of public examples that a neuron passes on, on average; 0: one in a batch."""

    def check(self, rule: LocalRule) -> None:
        """A neuron that is active in two of several steps blends them."""
        if rule.steps > 1:
            raise CraftError("several local steps move the traps: server=traps needs one step, or use imprint or loki")

    def fits(self, model: nn.Module) -> None:
        """The first layer with weights must read the pixels, and pass on what is positive."""
        layers = [(name, one) for name, one in model.named_modules() if any(True for _ in one.parameters(recurse=False))]
        if not isinstance(layers[0][1], nn.Linear) or layers[0][1].bias is None:
            raise CraftError("server=traps needs a model that begins with a fully connected layer, such as mlp: or use imprint")

    def weights(self, honest: Tensors, server_round: int, scene: Scene) -> Tensors:
        """Traps for pixels in [0, 1], through whatever is done to these before the layer."""
        name = next(name for name, one in scene.model.named_modules() if isinstance(one, nn.Linear))
        rows = honest[f"{name}.weight"]
        rng = generator(scene.seed, "traps", server_round)
        half = rows.shape[1] // 2
        size = self.spread * torch.randn(len(rows), half, generator=rng).abs()
        places = torch.rand(rows.shape, generator=rng).argsort(1)
        positive, negative = (torch.zeros(rows.shape).scatter_(1, part, size) for part in places[:, : 2 * half].split(half, 1))
        x = scene.public[:SOME].flatten(1)
        up, down = x @ positive.T, x @ negative.T
        # A neuron passes an example on if the factor is above down / up.
        rate = self.rate or 1 / scene.rule.batch_size
        factor = (down / up.clamp_min(1e-12)).flatten().sort().values[int(rate * up.numel())]
        traps = (factor * positive - negative).to(rows)
        ends = _entering(scene.model, name, torch.stack([torch.zeros_like(scene.public[0]), torch.ones_like(scene.public[0])]))
        made = traps / (ends[1] - ends[0])
        return {f"{name}.weight": made, f"{name}.bias": -made @ ends[0]}


def _entering(model: nn.Module, layer: str, x: Tensor) -> Tensor:
    """What enters a layer for images x: (n, inputs)."""
    found: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_pre_hook(lambda _, inputs: found.append(inputs[0].detach()))
    try:
        with torch.no_grad():
            model(x.to(next(model.parameters())))
    finally:
        handle.remove()
    return found[0]
