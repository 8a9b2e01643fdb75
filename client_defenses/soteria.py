"""Soteria (Sun et al. 2021, "Provable Defense Against Privacy Leakage in FL From Representation Perspective")."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from client_defenses.base import Defense, Memory
from client_defenses.tools.layers import jacobian_norms, linear_layer, sketched_norms, watched
from client_defenses.tools.slices import noisy_slices
from client_defenses.tools.words import lifted
from fl_app.core.local import Step, Tensors

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Soteria(Defense):
    """Soteria: hides the entries of the representation r before a linear layer that tell most about the input.

    Entries rank by |r_i| / |dr_i/dx|, the authors' stand-in for |r_i (dr_i/dx)^-1|, and the top `ratio` of each example's
    entries is zero in that layer's weight gradient, sum_s d_s (m_s r_s)^T. All else, the bias too, is the plain gradient.

    - ratio 0.6 is the rate of the authors' quick start (their option's own default is 0, their DLG notebook takes 0.01).
    - masks="batch" is what their code does with more than one example: it sums |dr_i/dx| / r_i over the batch and zeroes the
      same columns for all. Theirs divides by r_i + 0.1 there, which changes the order for small r; we divide by r_i.
    - layer is a linear layer's name, "auto" the last one; it must see one vector for each example.
    - probes = k estimates the norms from k directional derivatives, 0 computes them. Measured on LeNet and CIFAR-shaped
      noise, ratio 0.6: k = 64 has a relative error of 9 % and 97 % of the pruned entries in common with the exact ones,
      k = 32 12 % and 95 %, k = 16 18 % and 93 %. With batch statistics, where the norm of one example is not defined
      alone, the two measure different things and have 86 to 95 % in common.
    - variant="mixed" stands for the "improved Soteria" that the Refiner paper ascribes to Wang et al. 2022 (INFOCOM), which
      answers attackers who leave this layer out. Their paper is not at hand; their public code holds no gradient mixing, but
      noise on randomly drawn slices of the whole gradient, each slice with an equal share of its sensitivity to the input.
      So "mixed" is Soteria with that noise, of std `scale`. Their server's denoising after aggregation is left out.

    `expected` stays the identity: an informed attacker leaves the layer's weight out instead.
    """

    ratio: Share = 0.6
    layer: str = "auto"
    masks: Literal["sample", "batch"] = "sample"
    variant: Literal["original", "mixed"] = "original"
    probes: Annotated[int, Field(ge=0, le=1024)] = 64
    scale: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5e-4

    @property
    def muted(self) -> tuple[str, ...]:
        """What an informed attacker leaves out of its match, in the words of its `ignore`."""
        return ("last",) if self.layer == "auto" else (f"{self.layer}.weight",)

    # The gradient is taken here, not changed afterwards: the weight's own gradient has to be summed again from each
    # example's part, which would undo what another defense had done to it before.
    def gradient(self, step: Step, memory: Memory) -> Tensors:
        """The plain gradient, but for the layer's weight."""
        step = lifted(step, "soteria")
        name, layer = linear_layer(step.model, self.layer)
        leaves = {key: value.detach().requires_grad_() for key, value in step.params.items()}
        r, out, logits = watched(step.model, leaves, layer, name)(step.x)
        loss = F.cross_entropy(logits, step.y)
        *plain, delta = torch.autograd.grad(loss, [*leaves.values(), out], materialize_grads=True)
        grads = dict(zip(leaves, plain, strict=True))
        if pruned := int(self.ratio * r.shape[1]):
            grads[f"{name}.weight"] = delta.T @ (r.detach() * self.kept(step, r.detach(), pruned, memory))
        return noisy_slices(grads, step, self.scale, memory) if self.variant == "mixed" else grads

    def kept(self, step: Step, r: Tensor, pruned: int, memory: Memory) -> Tensor:
        """1 where an entry of r stays and 0 where it is pruned, (batch, n)."""
        name, layer = linear_layer(step.model, self.layer)
        params = {key: value.detach() for key, value in step.params.items()}
        run = watched(step.model, params, layer, name)
        if self.probes:
            signs = 2 * torch.randint(0, 2, (self.probes, *step.x.shape[1:]), generator=memory.rng) - 1
            norms = sketched_norms(lambda x: run(x)[0], step.x, signs)
        else:
            norms = jacobian_norms(lambda x: run(x)[0], step.x)
        if self.masks == "batch":
            # The least |dr/dx| / |r| in all: an entry that is zero somewhere tells nothing there, and counts as infinite.
            scores = -(norms / r.float().abs()).nan_to_num(nan=torch.inf).sum(0, keepdim=True)
        else:
            scores = (r.float().abs() / norms).nan_to_num(nan=0, posinf=torch.inf)  # 0 / 0: a dead entry, nothing to hide
        return torch.ones_like(scores).scatter(1, scores.topk(pruned, dim=1).indices, 0).to(r)
