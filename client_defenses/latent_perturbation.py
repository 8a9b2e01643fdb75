"""Latent perturbation: noise on a hidden layer, which a private decoder must not see through (Jiang et al. 2025)."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from client_defenses.base import Defense, Memory
from client_defenses.tools.cut import Change, cut_layer, passed
from client_defenses.tools.decoder import Over, correlation, improve
from client_defenses.tools.words import lifted
from fl_app.core.local import LocalAdam, Step, Tensors

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class LatentPerturbation(Defense):
    """Puts N(mu, sigma²) on the latent z, and takes the gradient of cross-entropy + alpha |r|, r of inputs and their decoding.

    Before that a decoder that stays on the client steps on 1 - |r| (Section III-B), on the same noisy latents. `layer` names
    the module whose output is z; "auto": see `cut_layer`. noise="learned": mu and sigma of each element of z start from those
    given, are learnt on the client's own examples before its first round (Algorithm 1), and then stay; a training loop that
    does not call `on_start` keeps the start. Only noise with alpha = 0: then there is no decoder. The server tests the model
    without noise; the mean of the noise can be added for a test with `adversary.informed.latent_perturbation.with_mean_noise`.
    """

    alpha: Weight = 1.0
    noise: Literal["fixed", "learned"] = "fixed"
    mu: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    sigma: Weight = 0.1
    layer: str = "auto"
    over: Over = "batch"
    """Whether r is one for all elements of a batch, as Algorithm 1 reads, or the mean of |r| of each sample (ours)."""
    decoder_lr: Rate = 1e-3
    """Rate of the decoder's Adam; the paper's is that of the client: 1e-3 for BloodMNIST, 1e-4 for CIFAR-10."""
    pretrain_epochs: Annotated[int, Field(ge=0, le=10**6)] = 10
    """Passes over the client's examples by which noise="learned" is learnt; the paper prints no number."""
    pretrain_lr: Rate = 1e-3
    """Rate of Adam for weights and noise in this; a step moves mu and sigma by about as much."""
    pretrain_batch: Annotated[int, Field(ge=1, le=10**9)] = 128

    def gradient(self, step: Step, memory: Memory) -> Tensors:
        """One step of the decoder, then the gradient by encoder and predictor (Eq. 3) with the decoder held fixed."""
        leaves = {name: value.detach().requires_grad_() for name, value in step.params.items()}
        law = (memory.state.get("noise/mu", self.mu), memory.state.get("noise/sigma", self.sigma))
        loss = self._loss(step._replace(params=leaves), _noise(*law, memory), memory)
        grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, grads, strict=True))

    def _loss(self, step: Step, noise: Change, memory: Memory) -> Tensor:
        """Cross-entropy + alpha |r| of a batch, after a step of the decoder in the memory."""
        step = lifted(step, "latent_perturbation")
        layer = cut_layer(step.model, step.params, step.x, self.layer)
        logits, z = passed(step.model, step.params, step.x, layer, noise)
        loss = F.cross_entropy(logits, step.y)
        if self.alpha == 0:
            return loss
        # The encoder is the same before and after the decoder's step, so one pass through it serves both.
        decoder = improve(z, step.x, self.decoder_lr, self.over, memory)
        return loss + self.alpha * correlation(decoder, z, step.x, self.over).to(loss)

    def on_start(self, step: Step, memory: Memory) -> None:
        """Learn the noise on all examples of a client, from a copy of the weights that is then thrown away (Algorithm 1)."""
        if self.noise == "fixed":
            return
        step = lifted(step, "latent_perturbation")
        layer = cut_layer(step.model, step.params, step.x, self.layer)
        with torch.no_grad():
            _, z = passed(step.model, step.params, step.x[:2], layer, lambda value: value)
        like = z[0].to(torch.promote_types(z.dtype, torch.float32))
        law = {"mu": torch.full_like(like, self.mu), "sigma": torch.full_like(like, self.sigma)}
        weights: Tensors = {f"weights/{name}": value for name, value in step.params.items()}
        learnt, adam, scratch = weights | law, LocalAdam(), Memory({}, memory.rng)  # its decoder is not the one of the rounds
        for _ in range(self.pretrain_epochs):
            for batch in torch.randperm(len(step.x), generator=memory.rng).to(step.x.device).split(self.pretrain_batch):
                leaves = {name: value.detach().requires_grad_() for name, value in learnt.items()}
                some = Step({name: leaves[f"weights/{name}"] for name in step.params}, step.model, step.x[batch], step.y[batch])
                loss = self._loss(some, _noise(leaves["mu"], leaves["sigma"], memory), scratch)
                grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
                moves = adam.direction(dict(zip(leaves, grads, strict=True)))
                learnt = {name: value - self.pretrain_lr * moves[name] for name, value in learnt.items()}
        # The law is the same for -sigma, which is where a small one may have gone.
        memory.state |= {"noise/mu": learnt["mu"], "noise/sigma": learnt["sigma"].abs()}


def _noise(mu: Tensor | float, sigma: Tensor | float, memory: Memory) -> Change:
    """Adds a draw of N(mu, sigma²) to each element of a latent (batch, *latent); mu and sigma are numbers or (*latent)."""

    def change(z: Tensor) -> Tensor:
        law = [value.to(z.device) if isinstance(value, Tensor) else value for value in (mu, sigma)]
        return z + (law[0] + law[1] * memory.normal(z)).to(z.dtype)

    return change
