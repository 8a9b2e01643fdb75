"""Weights as malicious servers craft them, by the papers' formulas."""

import torch


def last_of(params):
    """(name of the last layer's weight, name of its bias)."""
    name = [key for key, value in params.items() if value.ndim == 2][-1]
    return name, name.removesuffix("weight") + "bias"


def fishing_class(params, target=0):
    """Wen et al. 2022: only examples of one class send a gradient to the network."""
    weight, bias = last_of(params)
    rows, biases = torch.zeros_like(params[weight]), torch.full_like(params[bias], 1000.0)
    rows[target], biases[target] = 0.5, 0.0
    return {**params, weight: rows, bias: biases}


def fishing_feature(params, target=0, feature=3, cut=0.1, size=300.0):
    """Wen et al. 2022: of a class, only examples on one side of a cut through a feature send one."""
    weight, bias = last_of(params)
    rows, biases = torch.zeros_like(params[weight]), torch.zeros_like(params[bias])
    rows[target, feature], biases[target] = size, -cut * size
    return {**params, weight: rows, bias: biases}


def traps(rows, factor=0.95, seed=0):
    """Boenisch et al. 2021: a random half of each row is negative, the other half the same but for a factor."""
    generator = torch.Generator().manual_seed(seed)
    number, size = rows.shape
    sizes = torch.randn(number, size // 2, generator=generator).abs() / 2
    mixed = torch.cat([-sizes, factor * sizes[:, torch.randperm(size // 2, generator=generator)]], 1)
    order = torch.rand(number, mixed.shape[1], generator=generator).argsort(1)
    return torch.cat([mixed.gather(1, order), torch.zeros(number, size - mixed.shape[1])], 1)


def imprint_front(params, pixels, bins=50):
    """Fowl et al. 2022: in front of the network, rows that all measure the brightness."""
    front = {"bins.weight": torch.full((bins, pixels), 1 / pixels), "bins.bias": -torch.linspace(0, 1, bins)}
    return {**front, "out.weight": torch.ones(1, bins) / bins, **params}


def loki_front(params, channels, pixels, clients=3, client=1, bins=50):
    """Zhao et al. 2024: kernels that pass a client's images on in channels of its own, then as imprint."""
    kernels = torch.zeros(clients * channels, channels, 3, 3)
    for channel in range(channels):
        kernels[client * channels + channel, channel, 1, 1] = 500.0
    return {"conv.weight": kernels, **imprint_front(params, clients * pixels, bins)}
