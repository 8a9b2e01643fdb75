"""R-GAP's rank analysis (Zhu and Blaschko 2021, section 4): which layers give away their input, without an attack.

Given what leaves a layer and the gradient by it, the layer's weight gradient and its output are linear in its input. Where
these equations have full rank in every layer, one example follows from its gradient layer by layer.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp

from adversary.exact.layers import flow
from fl_app.analysis.bounds.identifiability import identifiability
from fl_app.analysis.bounds.sensitivity import Sensitivity
from fl_app.core.local import Tensors

SMALL = 1200
"""Unknowns up to which a layer's rank is computed, and not only bounded by counting: about a second."""


class LayerRank(NamedTuple):
    """What a layer's equations determine of its input, for one example."""

    layer: str
    equations: int
    unknowns: int
    rank: int | None
    """None: too large to be decomposed; at most the lesser of the two numbers."""

    @property
    def closed(self) -> bool:
        """Whether some of the input does not follow from the layer's equations, by its rank or by counting."""
        return self.known < self.unknowns

    @property
    def known(self) -> int:
        """Unknowns that follow at most."""
        return min(self.equations, self.unknowns) if self.rank is None else self.rank


def weakest(ranks: Sequence[LayerRank]) -> LayerRank:
    """The layer of which the least share of the input follows, and among equals the one with the fewest equations."""
    return min(ranks, key=lambda one: (one.known / one.unknowns, one.equations / one.unknowns))


def layer_sentences(ranks: Sequence[LayerRank]) -> list[str]:
    """What the ranks mean for one example, in at most one sentence."""
    if not ranks:
        return []
    closed, least = sum(one.closed for one in ranks), weakest(ranks)
    rank = f"rank {least.rank:,}" if least.rank is not None else "by counting"
    figures = f"{least.layer}, {least.equations:,} equations for {least.unknowns:,} unknowns, {rank}"
    if closed:
        told = f"{closed} of {len(ranks)} layers do not give their input away (the weakest: {figures}), so that it stops there"
    else:
        told = f"all {len(ranks)} layers can give their input away (the weakest: {figures})"
    return [f"Layer by layer, for one example alone in its batch (R-GAP): {told}."]


def layer_ranks(
    model: nn.Module, input_shape: tuple[int, ...], num_classes: int, most: int = SMALL, seed: int = 0
) -> list[LayerRank]:
    """The rank of each linear and convolutional layer with at most so many unknowns, at a random image, first to last."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand((1, *input_shape), generator=rng, dtype=torch.float64)
    y = torch.randint(num_classes, (1,), generator=rng)
    model = deepcopy(model).double()
    params = {name: value.detach() for name, value in model.named_parameters()}
    layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    return [_rank(name, model, params, x, y, most, rng) for name in layers]


def _rank(name: str, model: nn.Module, params: Tensors, x: Tensor, y: Tensor, most: int, rng: torch.Generator) -> LayerRank:
    at, layer = flow(model, params, name, x, y), model.get_submodule(name)
    own = {key: value.detach() for key, value in layer.named_parameters()}
    equations, unknowns = own["weight"].numel() + at.outputs.numel(), at.inputs.numel()
    if unknowns > most:
        return LayerRank(name, equations, unknowns, None)
    scale = at.slopes.norm().clamp_min(1e-30)

    def told(inputs: Tensor) -> Tensor:
        """The gradient of the weight and the output, each on its own scale, as a vector."""
        through = vjp(lambda weight: functional_call(layer, {**own, "weight": weight}, (inputs,)), own["weight"])
        out, back = through[0], through[1]
        return torch.cat([back(at.slopes)[0].flatten() / scale, out.flatten()])

    return LayerRank(name, equations, unknowns, identifiability(Sensitivity(told, at.inputs), unknowns, rng, 1.0).rank_at_least)
