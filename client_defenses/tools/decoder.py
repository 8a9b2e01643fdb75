"""The private decoder of latent perturbation: its shape, its steps, and the correlation that it plays for."""

from functools import lru_cache
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from client_defenses.base import Memory
from fl_app.core.local import Tensors

Over = Literal["batch", "sample"]
Sizes = tuple[int, ...]
HIDDEN = 256
"""Between the two linear layers of a decoder of vectors (ours)."""


class Decoder(nn.Module):
    """Latents (batch, *latent) to reconstructions of the inputs (batch, *image), float32.

    For (channels, height, width) it is that of Table I: transposed convolutions of kernel 3 and 4 and stride 1, each with
    BatchNorm and ReLU, and one whose stride and kernel make the size right. For the paper's latents of 10 x 10 and 9 x 9 this
    is stride 2 with kernel 4 for CIFAR-10 and 2 for BloodMNIST; the table has these two the other way round, which gives 30 x
    30 for both. It has as many channels as the latent, and no fewer than 32 (ours). Latents nearly as large as the image get
    two layers that keep the size, and other latents two linear layers (ours).
    """

    def __init__(self, latent: Sizes, image: Sizes) -> None:
        super().__init__()
        self.image = image
        if len(latent) != 3 or len(image) != 3:
            size = prod(latent)
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(size, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, prod(image)))
            return
        before, *sides = latent
        width = max(32, before)
        grown = [side + 5 for side in sides]
        keep = any(goal < side for goal, side in zip(image[1:], grown, strict=True))
        sides = sides if keep else grown
        layers: list[nn.Module] = []
        for kernel in (3, 3) if keep else (3, 4):
            # No bias: BatchNorm takes it out again, and Adam would move it by rounding errors alone.
            layers.append(nn.ConvTranspose2d(before, width, kernel, padding=1 if keep else 0, bias=False))
            # Batch statistics only: running ones would be one more thing to remember, and are never used.
            layers += [nn.BatchNorm2d(width, track_running_stats=False), nn.ReLU()]
            before = width
        stride = [max(1, goal // side) for goal, side in zip(image[1:], sides, strict=True)]
        fits = [max(1, goal - (side - 1) * s) for goal, side, s in zip(image[1:], sides, stride, strict=True)]
        layers.append(nn.ConvTranspose2d(width, image[0], (fits[0], fits[1]), (stride[0], stride[1])))
        self.net = nn.Sequential(*layers)

    def forward(self, z: Tensor) -> Tensor:
        """(batch, *latent) -> (batch, *image)."""
        out: Tensor = self.net(z)
        if out.ndim == 4 and out.shape[2:] != self.image[1:]:  # only where the latent is larger than the image
            out = F.interpolate(out, self.image[1:], mode="bilinear")
        return out.view(len(z), *self.image)


@lru_cache(maxsize=16)
def _skeleton(latent: Sizes, image: Sizes) -> Decoder:
    """A decoder without numbers: those come from the client's memory at each call."""
    with torch.device("meta"):
        return Decoder(latent, image)


def pearson(x: Tensor, decoded: Tensor, over: Over = "batch") -> Tensor:
    """Pearson's r (Eq. 1) of (batch, ...) pairs: a scalar over all elements of the batch, or (batch,) one for each sample."""
    rows = [value.flatten() if over == "batch" else value.flatten(1) for value in (x, decoded)]
    a, b = (value - value.mean(-1, keepdim=True) for value in rows)
    # Of a constant r is not defined: 0, with a gradient of 0.
    sizes = [torch.linalg.vector_norm(value, dim=-1).clamp_min(1e-12) for value in (a, b)]
    r: Tensor = (a * b).sum(-1) / (sizes[0] * sizes[1])
    return r


def start(latent: Sizes, image: Sizes, memory: Memory) -> Tensors:
    """The first weights of a decoder, drawn from the client's generator; the global one is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=memory.rng)))
        return {name: value.detach() for name, value in Decoder(latent, image).named_parameters()}


def correlation(weights: Tensors, z: Tensor, x: Tensor, over: Over) -> Tensor:
    """|r| between inputs x (batch, *image) and what a decoder makes of latents z (batch, *latent): a scalar, a mean of |r|.

    The decoder works in float32, whatever the model does; gradients by z come back in its own type.
    """
    image = x.to(torch.promote_types(x.dtype, torch.float32))
    decoder = _skeleton(tuple(z.shape[1:]), tuple(x.shape[1:]))
    decoded = functional_call(decoder, weights, (z.float(),), tie_weights=False)
    return pearson(image, decoded.to(image), over).abs().mean()


def improve(z: Tensor, x: Tensor, lr: float, over: Over, memory: Memory) -> Tensors:
    """One step of the decoder in a client's memory on 1 - |r| (Eq. 2) by Adam; returns its new weights."""
    own = memory.part("decoder")
    known, firsts, seconds = (own.part(part).state for part in ("weights", "first", "second"))
    known = known or start(tuple(z.shape[1:]), tuple(x.shape[1:]), memory)
    leaves = {name: value.detach().to(z.device).requires_grad_() for name, value in known.items()}
    loss = 1 - correlation(leaves, z.detach(), x, over)
    grads = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    steps = int(own.state.get("steps", torch.zeros(1))) + 1
    weights: Tensors = {}
    for name, grad in grads.items():
        zero = torch.zeros_like(grad)
        first = 0.9 * firsts.get(name, zero).to(grad) + 0.1 * grad
        second = 0.999 * seconds.get(name, zero).to(grad) + 0.001 * grad.square()
        size = (second / (1 - 0.999**steps)).sqrt() + 1e-8
        weights[name] = leaves[name].detach() - lr * first / (1 - 0.9**steps) / size
        own.state |= {f"weights/{name}": weights[name], f"first/{name}": first, f"second/{name}": second}
    own.state["steps"] = torch.tensor([steps])
    memory.keep("decoder", own)
    return weights
