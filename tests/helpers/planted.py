"""Layers whose slopes are known, as SPEAR is to find them."""

import torch
from torch.nn.functional import normalize

from adversary.exact.decompose import Layer, _Search

NEURONS, INPUTS = 60, 12


def planted(examples, dtype=torch.float64, seed=0):
    """(layer, inputs (examples, n), slopes (m, examples)): a slope is zero where the example's ReLU is off."""
    rng = torch.Generator().manual_seed(seed)
    weight, bias = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((NEURONS, INPUTS), (NEURONS,)))
    inputs = torch.randn(examples, INPUTS, generator=rng, dtype=torch.float64)
    slopes = torch.randn(NEURONS, examples, generator=rng, dtype=torch.float64) * (weight @ inputs.T + bias[:, None] > 0)
    layer = Layer(weight, bias, (slopes @ inputs).to(dtype), slopes.sum(1).to(dtype))
    return layer, inputs, slopes


def search(examples=4, **more):
    layer, _, slopes = planted(examples, **more)
    one = _Search(layer, examples, 1e-9, 1e-11, torch.Generator().manual_seed(1))
    return one, normalize(one.columns.T @ slopes, dim=0).T  # the directions that it is to find


def alike(one, other):
    """Absolute cosines of rows."""
    return (normalize(one, dim=1) @ normalize(other, dim=1).T).abs()
