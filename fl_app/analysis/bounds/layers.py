"""R-GAP's rank analysis (Zhu and Blaschko 2021, section 4): which layers give away their input, without an attack.

Given what leaves a layer and the gradient by it, the layer's weight gradient and its output are linear in its input. Where
these equations have full rank in every layer, one example follows from its gradient layer by layer.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp

from adversary.exact.layers import flow
from fl_app.analysis.bounds.identifiability import Identifiability, identifiability
from fl_app.analysis.bounds.sensitivity import Sensitivity
from fl_app.core.local import Tensors

SMALL = 1200
"""Unknowns up to which a layer's rank is computed and not only bounded: one second."""
DIRECTIONS = 32
"""Directions that are tried on a larger one."""


class LayerRank(NamedTuple):
    """A layer's name and what its equations determine of its input, for one example."""

    layer: str
    told: Identifiability

    @property
    def open(self) -> bool:
        """Whether nothing forbids that the input follows: the equations may have full rank."""
        return self.told.rank_at_most >= self.told.unknowns

    @property
    def rank(self) -> str:
        """The rank, for people."""
        low, high = self.told.rank_at_least, self.told.rank_at_most
        return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def layer_ranks(model: nn.Module, input_shape: tuple[int, ...], num_classes: int, seed: int = 0) -> list[LayerRank]:
    """The rank of each linear and convolutional layer at a random image, in the order of the model."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand((1, *input_shape), generator=rng, dtype=torch.float64)
    y = torch.randint(num_classes, (1,), generator=rng)
    model = model.double()
    params = {name: value.detach() for name, value in model.named_parameters()}
    found = []
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            found.append(LayerRank(name, _rank(layer, name, model, params, x, y, rng)))
    return found


def _rank(
    layer: nn.Module, name: str, model: nn.Module, params: Tensors, x: Tensor, y: Tensor, rng: torch.Generator
) -> Identifiability:
    at = flow(model, params, name, x, y)
    own = {key: value.detach() for key, value in layer.named_parameters()}

    def told(inputs: Tensor) -> Tensor:
        """The gradient of the weight and the output, each on its own scale, as a vector."""
        out, back = vjp(lambda weight: functional_call(layer, {**own, "weight": weight}, (inputs,)), own["weight"])
        gradient = back(at.slopes)[0]
        return torch.cat([gradient.flatten() / scale, out.flatten()])

    scale = at.slopes.norm().clamp_min(1e-30)
    sensitivity = Sensitivity(told, at.inputs)
    directions = sensitivity.unknowns if sensitivity.unknowns <= SMALL else DIRECTIONS
    return identifiability(sensitivity, directions, rng, 1.0)
