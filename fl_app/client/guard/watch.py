"""A gradient that is taken as ever, and what passes through the layers on the way: what each example adds to it."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fl_app.core.local import Step, Tensors


class Passed(NamedTuple):
    """One layer's part: its name, how much each example puts in, and the gradient by its output."""

    layer: str
    fan_in: int
    """Numbers that one example puts in."""
    inputs: Tensor
    """Their norm, (batch,)."""
    fan_out: int
    """Numbers that come out for one example."""
    slopes: Tensor
    """The norm of the gradient by these, (batch,)."""
    delta: Tensor | None
    """That gradient itself where an example is one row, (batch, fan_out): larger ones are not kept, which would cost time."""


class Notes(NamedTuple):
    """What one gradient was made of: the mean loss, the number of classes, and the layers in the order of their use."""

    loss: float
    classes: int
    layers: list[Passed]


class Watched(Step):
    """A step that notes what its gradient is made of; the gradient is that of `Step`, bit for bit."""

    notes: Notes | None = None

    def gradient(self) -> Tensors:
        """The gradient, and by the way the notes."""
        grads, self.notes = noted_gradient(self)
        return grads


class Watch:
    """Sees the first gradient of a round, the one that is taken with the weights as they came."""

    def __init__(self) -> None:
        self._first: Watched | None = None

    def __call__(self, step: Step) -> Step:
        """The step to go on with."""
        if self._first is not None:
            return step
        self._first = Watched(*step)
        return self._first

    def notes(self) -> Notes:
        """What the first gradient was made of; a defense that takes its gradient in another way has it taken once more."""
        assert self._first is not None
        return self._first.notes or noted_gradient(self._first)[1]


def noted_gradient(step: Step) -> tuple[Tensors, Notes]:
    """(the gradient as `Step.gradient` takes it, what it was made of)."""
    passed: list[tuple[str, int, Tensor]] = []
    deltas: dict[int, tuple[int, Tensor, Tensor | None]] = {}

    def note(name: str, inputs: Tensor, output: Tensor) -> None:
        place, flat = len(passed), inputs.detach().flatten(1)
        passed.append((name, flat.shape[1], torch.linalg.vector_norm(flat, dim=1)))
        if output.requires_grad:
            output.register_hook(lambda delta: deltas.__setitem__(place, _summed_up(delta)))

    hooks = [
        module.register_forward_hook(lambda _, args, output, name=name: note(name, args[0], output))
        for name, module in step.model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
    ]
    leaves = {name: value.detach().requires_grad_() for name, value in step.params.items()}
    try:
        logits = functional_call(step.model, leaves, (step.x,), tie_weights=False)
        loss = F.cross_entropy(logits, step.y)
    finally:
        for hook in hooks:
            hook.remove()
    grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    layers = [Passed(*one, *deltas[place]) for place, one in enumerate(passed) if place in deltas]
    return dict(zip(leaves, grads, strict=True)), Notes(float(loss.detach()), logits.shape[-1], layers)


def _summed_up(delta: Tensor) -> tuple[int, Tensor, Tensor | None]:
    """(numbers of one example, their norm by example, all of them if an example is one row) of a gradient (batch, ...)."""
    flat = delta.detach().flatten(1)
    return flat.shape[1], torch.linalg.vector_norm(flat.float(), dim=1), flat if delta.ndim == 2 else None
