"""FedEM: train on inputs moved by a small perturbation that makes the loss smaller (its Algorithm 1)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from client_defenses.base import Defense, Memory
from client_defenses.tools.words import lifted
from fl_app.core.local import Step, Tensors, loss_of
from fl_app.core.spec import SpecError

Radius = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, kw_only=True)
class FedEM(Defense):
    """Adds to the inputs a perturbation that minimises the loss, of L2 norm rho_min to rho_max in pixels of [0, 1].

    Of text it is added to the word vectors, and the radius is on their scale.

    It is drawn at the start of each round (line 4) and kept from batch to batch. Inputs are not clipped afterwards, as
    Algorithm 1 does not. scope="client": one perturbation for all examples. scope="sample" (ours): one for each place in the
    batch; a smaller batch leaves the last places as they were, a larger one draws for the places that are new.
    """

    rho_min: Radius = 0.0
    rho_max: Radius = 8 / 255
    steps: Annotated[int, Field(ge=0, le=10**6)] = 15
    """N of the paper, per batch."""
    alpha: Rate = 0.1
    """Rate of the perturbation, alpha_u: what each signed step moves every pixel by before the projection."""
    lr: Rate = 0.1
    """Rate of the local copy of the weights, eta."""
    scope: Literal["client", "sample"] = "client"
    batches: Annotated[int, Field(ge=0, le=10**9)] = 0
    """For how many batches a perturbation is kept, over rounds too; 0: until the round ends.

    A round of the paper is a pass over a client's data with a server step per batch. Where a round here is one batch
    (update="gradient"), that is batches = examples per client // batch size.
    """
    fused: bool = False
    """Take both steps of an iteration from one pass, at the perturbation before its step (ours, about half the cost)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rho_min > self.rho_max:
            raise SpecError(f"fedem: rho_min={self.rho_min} is more than rho_max={self.rho_max}")

    def on_batch(self, step: Step, memory: Memory) -> Step:
        """Move the inputs; the gradient is then taken at the weights that the server sent (line 14)."""
        if self.rho_max == 0:
            return step
        text, step = not step.x.is_floating_point(), lifted(step, "fedem")
        known, number = self._start(step.x, memory)
        if text:  # which words are real stays as it is: nothing pulls at that channel
            known[..., -1] = 0
        places = len(step.x) if self.scope == "sample" else 1
        delta = self.minimise(step, known[:places], memory)
        kept = self._kept(memory)
        kept["delta"] = torch.cat([delta, known[places:]])
        kept["batches"] = torch.tensor([number + 1])
        return step._replace(x=_moved(step.x, delta))

    def _kept(self, memory: Memory) -> Tensors:
        """Where the perturbation is remembered: for this round, or also for later ones."""
        return memory.state if self.batches else memory.round

    def _start(self, x: Tensor, memory: Memory) -> tuple[Tensor, int]:
        """(perturbations (at least the places needed, *shape), batches since they were drawn)."""
        places, kept = len(x) if self.scope == "sample" else 1, self._kept(memory)
        known, number = kept.get("delta"), int(kept.get("batches", torch.zeros(1)))
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
        entry = entry_of(step, delta) if len(delta) == 1 < len(step.x) else None
        for n in range(self.steps):
            last = n + 1 == self.steps  # the copy is thrown away after the batch, so its last step would be for nothing
            by_delta, grads = gradients(step._replace(params=local), delta, entry, weights=self.fused and not last)
            delta = self.project(delta - self.alpha * by_delta.sign(), memory)
            if not last:
                # Line 12 is at the new perturbation, so its gradient cannot come from the same pass as that of line 10.
                grads = grads or Step(local, step.model, _moved(step.x, delta), step.y).gradient()
                local = {name: value - self.lr * grads[name] for name, value in local.items()}
        return delta


def gradients(step: Step, delta: Tensor, entry: nn.Module | None, *, weights: bool = False) -> tuple[Tensor, Tensors]:
    """The gradient of the loss by the perturbation, and if asked for by the weights, which costs half a backward pass more.

    With an entry the examples' gradients are summed at its output, and only their sum goes back through it: the gradient by
    the input is the dearest part of a backward pass, and that by one perturbation for all examples need not pay for each.
    """
    leaves = {name: value.detach().requires_grad_(weights) for name, value in step.params.items()}
    leaf = delta.detach().requires_grad_()
    if entry is None:
        loss, ends = loss_of(step.model, leaves, _moved(step.x, leaf), step.y), [leaf]
    else:
        with _outputs_of(entry) as ends:
            loss = loss_of(step.model, leaves, _moved(step.x, delta), step.y)
    by_delta, *grads = torch.autograd.grad(loss, [*ends, *(leaves.values() if weights else ())], materialize_grads=True)
    if entry is not None:
        with _outputs_of(entry) as ends:
            functional_call(step.model, leaves, (leaf.to(step.x.dtype),), tie_weights=False)
        (by_delta,) = torch.autograd.grad(ends, leaf, [by_delta.sum(0, keepdim=True)])
    return by_delta, dict(zip(leaves, grads, strict=False))


@contextmanager
def _outputs_of(entry: nn.Module) -> Iterator[list[Tensor]]:
    """A list that fills with the outputs of a layer, which can be differentiated by."""
    seen: list[Tensor] = []

    def after(_module: nn.Module, _args: object, output: Tensor) -> None:
        seen.append(output if output.requires_grad else output.requires_grad_())

    hook = entry.register_forward_hook(after)
    try:
        yield seen
    finally:
        hook.remove()


def entry_of(step: Step, delta: Tensor) -> nn.Module | None:
    """The first layer, if the input acts through it alone and its output is affine in it, example by example.

    It is tried on two examples: layers that draw noise, work in place or use statistics of the batch do not pass.
    """
    entry = next((module for module in step.model.modules() if isinstance(module, LAYERS)), None)
    few = step._replace(x=step.x[:2], y=step.y[:2])
    try:
        plain, summed = gradients(few, delta, None)[0], gradients(few, delta, entry)[0]
    except (RuntimeError, ValueError):  # not called once, or its output is changed in place
        return None
    size = plain.abs().max()
    return entry if bool(((plain - summed).abs().max() <= 1e-4 * size) & (size > 0)) else None


def _moved(x: Tensor, delta: Tensor) -> Tensor:
    return (x + delta).to(x.dtype)


def _norms(delta: Tensor) -> Tensor:
    """L2 norms of perturbations (places, *shape) -> (places,)."""
    norms: Tensor = torch.linalg.vector_norm(delta.flatten(1), dim=1)
    return norms


def _over_pixels(value: Tensor, delta: Tensor) -> Tensor:
    return value.view(-1, *[1] * (delta.ndim - 1))
