"""FedEM: train on inputs moved by a small perturbation that makes the loss smaller (its Algorithm 1)."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from client_defenses.base import Defense, Memory
from fl_app.local import Step, Tensors, loss_of
from fl_app.spec import SpecError

Radius = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class FedEM(Defense):
    """Adds to the inputs a perturbation that minimises the loss, of L2 norm rho_min to rho_max in pixels of [0, 1].

    It is kept from batch to batch and drawn afresh after `batches` of them (0: never): the paper draws it once a round of
    one local epoch. Inputs are not clipped afterwards, as Algorithm 1 does not. scope="client": one perturbation for all
    examples. scope="sample" (ours): one for each place in the batch; a smaller batch leaves the last places as they were,
    a larger one draws for the places that are new.
    """

    rho_min: Radius = 0.0
    rho_max: Radius = 8 / 255
    steps: Annotated[int, Field(ge=0)] = 15
    alpha: Rate = 0.1
    """Rate of the perturbation, alpha_u: what each signed step moves every pixel by before the projection."""
    lr: Rate = 0.1
    """Rate of the local copy of the weights, eta."""
    scope: Literal["client", "sample"] = "client"
    batches: Annotated[int, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rho_min > self.rho_max:
            raise SpecError(f"fedem: rho_min={self.rho_min} is more than rho_max={self.rho_max}")

    def on_batch(self, step: Step, memory: Memory) -> Step:
        """Move the inputs; the gradient is then taken at the weights that the server sent (line 14)."""
        if self.rho_max == 0:
            return step
        if not step.x.is_floating_point():
            raise SpecError("fedem moves inputs of real numbers, such as pixels, and these are integers")
        known, number = self._start(step.x, memory)
        places = len(step.x) if self.scope == "sample" else 1
        delta = self.minimise(step, known[:places], memory)
        memory.state["delta"] = torch.cat([delta, known[places:]])
        memory.state["batches"] = torch.tensor([number + 1])
        return step._replace(x=_moved(step.x, delta))

    def _start(self, x: Tensor, memory: Memory) -> tuple[Tensor, int]:
        """(perturbations (at least the places needed, *shape), batches since they were drawn)."""
        places = len(x) if self.scope == "sample" else 1
        known, number = memory.state.get("delta"), int(memory.state.get("batches", torch.zeros(1)))
        if known is None or known.shape[1:] != x.shape[1:] or 0 < self.batches <= number:
            known, number = x.new_empty((0, *x.shape[1:])), 0
        # Half precision would round the perturbation away; it is only rounded once it is on the pixels.
        known = known.to(x.device, torch.promote_types(x.dtype, torch.float32))
        missing = known.new_empty((max(0, places - len(known)), *x.shape[1:]))
        return torch.cat([known, self.draw(missing, memory)]), number

    def draw(self, like: Tensor, memory: Memory) -> Tensor:
        """Random perturbations (places, *shape): a uniform direction, a radius from U(rho_min, rho_max) (ours)."""
        direction = memory.normal(like).to(like)
        radius = self.rho_min + (self.rho_max - self.rho_min) * memory.uniform(like.flatten(1)[:, :1]).to(like)
        return direction * _over_pixels(radius[:, 0] / _norms(direction), like)

    def project(self, delta: Tensor, memory: Memory) -> Tensor:
        """Perturbations (places, *shape) with norms brought into [rho_min, rho_max]; those without direction are drawn anew."""
        norms = _norms(delta)
        if not bool((norms > 0).all()):  # also where a diverged model gave no numbers
            delta = torch.where(_over_pixels(norms > 0, delta), delta, self.draw(delta, memory))
            norms = _norms(delta)
        return delta * _over_pixels(norms.clamp(self.rho_min, self.rho_max) / norms, delta)

    def minimise(self, step: Step, delta: Tensor, memory: Memory) -> Tensor:
        """Lines 9 to 13 of Algorithm 1: signed steps of the perturbation, each followed by one of a copy of the weights."""
        local = step.params
        for n in range(self.steps):
            slope = _slope(step._replace(params=local), delta)
            delta = self.project(delta - self.alpha * slope.sign(), memory)
            if n + 1 < self.steps:  # the copy is thrown away after the batch, so its last step would be for nothing
                # At the new perturbation, so this gradient cannot come from the same pass as the slope.
                grads = Step(local, step.model, _moved(step.x, delta), step.y).gradient()
                local = {name: value - self.lr * grads[name] for name, value in local.items()}
        return delta


def _slope(step: Step, delta: Tensor) -> Tensor:
    """The gradient of the loss by the perturbation; the weights need none, which spares half of the backward pass."""
    leaf = delta.detach().requires_grad_()
    fixed: Tensors = {name: value.detach() for name, value in step.params.items()}
    (slope,) = torch.autograd.grad(loss_of(step.model, fixed, _moved(step.x, leaf), step.y), [leaf])
    return slope


def _moved(x: Tensor, delta: Tensor) -> Tensor:
    return (x + delta).to(x.dtype)


def _norms(delta: Tensor) -> Tensor:
    """L2 norms of perturbations (places, *shape) -> (places,)."""
    norms: Tensor = torch.linalg.vector_norm(delta.flatten(1), dim=1)
    return norms


def _over_pixels(value: Tensor, delta: Tensor) -> Tensor:
    return value.view(-1, *[1] * (delta.ndim - 1))
