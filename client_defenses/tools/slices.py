"""Noise on random slices of a gradient (after the public code of Wang et al. 2022, INFOCOM)."""

import torch
from torch import Tensor

from client_defenses.base import Memory
from fl_app.core.local import Step, Tensors, loss_of

SLICES, NOISY = 10, 5
"""How many slices there are and how many get noise, as in the authors' demonstration."""


def sensitivities(step: Step) -> Tensor:
    """Mean norm over the examples of d(sum of a parameter's gradient) / dx, (parameters,).

    The authors take it on public examples; a client here has its own batch only.
    """
    leaves = {name: value.detach().requires_grad_() for name, value in step.params.items()}
    x = step.x.detach().requires_grad_()
    with torch.enable_grad():
        grads = torch.autograd.grad(loss_of(step.model, leaves, x, step.y), list(leaves.values()), create_graph=True)
        norms = []
        for value in grads:
            (by_x,) = torch.autograd.grad(value.sum(), x, retain_graph=True, materialize_grads=True)
            norms.append(by_x.flatten(1).float().norm(dim=1).mean())
    return torch.stack(norms)


def noisy_slices(grads: Tensors, step: Step, scale: float, memory: Memory) -> Tensors:
    """Add N(0, scale^2) to random slices of equal sensitivity; the sensitivities are taken in the first step and remembered."""
    if "sensitivities" not in memory.state:
        memory.state["sensitivities"] = sensitivities(step).cpu()
    share = memory.state["sensitivities"].double().clamp_min(1e-30)
    ends = (share.cumsum(0) / share.sum()).tolist()
    noisy = torch.zeros(SLICES, dtype=torch.bool)
    noisy[torch.randperm(SLICES, generator=memory.rng)[:NOISY]] = True
    sent, start = {}, 0.0
    for end, (name, value) in zip(ends, grads.items(), strict=True):
        # A parameter's sensitivity is spread evenly over its entries, so its entries go through the slices in order.
        places = start + (end - start) * (torch.arange(value.numel(), dtype=torch.float64) + 0.5) / value.numel()
        chosen = noisy[(places * SLICES).long().clamp(0, SLICES - 1)].view(value.shape).to(value.device)
        sent[name] = value + (scale * memory.normal(value) * chosen).to(value)
        start = end
    return sent
