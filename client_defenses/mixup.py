"""MixUp: train on weighted means of pairs of examples and of their labels (Zhang et al. 2018)."""

from dataclasses import dataclass
from typing import Annotated
from weakref import WeakKeyDictionary

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from client_defenses.base import Defense, Memory
from client_defenses.tools.words import lifted
from fl_app.core.local import Step

_classes: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class MixUp(Defense):
    """Mixes each example with another of its batch, one weight from Beta(alpha, alpha) for all; 0 mixes nothing.

    Partners come from a random permutation, as in the paper, so an example may meet itself and stay as it is. A batch of
    one has nobody to mix with and is left as it is: no protection at all.
    """

    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0

    def on_batch(self, step: Step, memory: Memory) -> Step:
        """Mix the batch; the labels become probabilities (batch, classes)."""
        if self.alpha == 0 or len(step.x) < 2:
            return step
        text, step = not step.x.is_floating_point(), lifted(step, "mixup")
        partner = torch.randperm(len(step.x), generator=memory.rng).to(step.x.device)
        mixed = mixed_pairs(step, self.weight(memory), partner)
        if text:  # a place is real where it is in either
            mixed.x[..., -1] = torch.maximum(step.x[..., -1], step.x[partner][..., -1])
        return mixed

    def weight(self, memory: Memory) -> float:
        """A draw from Beta(alpha, alpha); torch's own takes no generator."""
        seed = int(torch.randint(2**62, (), generator=memory.rng))
        return float(np.random.default_rng(seed).beta(self.alpha, self.alpha))


def mixed_pairs(step: Step, weight: float, partner: Tensor) -> Step:
    """The mixture weight * example + (1 - weight) * example[partner], inputs and labels alike."""
    y = soft_labels(step)
    return step._replace(
        x=weight * step.x + (1 - weight) * step.x[partner],
        y=weight * y + (1 - weight) * y[partner],
    )


def soft_labels(step: Step) -> Tensor:
    """The labels as probabilities (batch, classes) of the type of the inputs."""
    if step.y.ndim == 2:
        return step.y.to(step.x.dtype)
    return F.one_hot(step.y, number_of_classes(step)).to(step.x.dtype)


def number_of_classes(step: Step) -> int:
    """How many classes the model tells apart: the width of its output, found once per model by a forward pass."""
    if step.model not in _classes:
        # The pass leaves no trace: neither draws of the global generator, nor changed running statistics.
        buffers = {name: value.clone() for name, value in step.model.named_buffers()}
        with torch.no_grad(), torch.random.fork_rng([step.x.device] if step.x.is_cuda else []):
            output: Tensor = functional_call(step.model, {**buffers, **step.params}, (step.x,), tie_weights=False)
        _classes[step.model] = output.shape[1]
    return _classes[step.model]
