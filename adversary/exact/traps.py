"""The read-out of trap weights (Boenisch et al., EuroS&P 2023, section IV): neurons that one example alone activated."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from adversary.base import Attack, AttackError, Guess
from adversary.exact.features import inputs_of
from adversary.exact.found import Found, distinct, guess_of
from adversary.search.optimizers import Rate
from fl_app.core.observation import Observation, Task

OUTSIDE = 0.01
"""How far a pixel may lie outside of [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class TrapsReadout(Attack):
    """For a server=traps: what a neuron of the first layer learned is the one example that activated it, or a blend.

    Blends differ from neuron to neuron; an image that several neurons agree on is one.
    """

    near: Rate = 1e-3
    """Two neurons agree if their images are less than this apart, as a root mean square over pixels."""
    least: Rate = 1e-6
    """A neuron learned nothing if its bias moved by less than this share of the one that moved most."""

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Read off each target by itself."""
        return guess_of([self._read(one, task) for one in seen], seen, task)

    def _read(self, seen: Observation, task: Task) -> Found:
        layer = next((name for name, one in task.model.named_modules() if isinstance(one, nn.Linear)), "")
        if f"{layer}.bias" not in seen.update:
            raise AttackError("the model has no linear layer with a bias, whose input an update would give away")
        like = seen.params[f"{layer}.weight"]
        black = torch.zeros((1, *task.space.shape)).to(like)
        with torch.no_grad():
            low, high = inputs_of(task.model, seen.params, torch.cat([black, 1 - black]), [layer])[0].double()
        if low.shape != (black.numel(),) or not bool((high > low).all()):
            raise AttackError("the first linear layer does not read the image: traps are for models such as mlp")
        weight, bias = seen.update[f"{layer}.weight"].double(), seen.update[f"{layer}.bias"].double()
        hit = bias.abs() > self.least * bias.abs().max()
        x = (weight[hit] / bias[hit, None] - low) / (high - low)
        x = x[((x > -OUTSIDE) & (x < 1 + OUTSIDE)).all(1)]
        votes = (torch.cdist(x, x) < self.near * x.shape[1] ** 0.5).sum(1).double()
        return distinct(Found(x.view(-1, *task.space.shape), votes), self.near, seen.num_examples)
