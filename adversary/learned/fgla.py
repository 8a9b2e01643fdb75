"""FGLA (Xue et al. 2023): the features of a batch from the last layer's gradient, and a decoder from features to examples."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from adversary.base import Attack, AttackError, Facts, Guess, Informed, Public
from adversary.labels import LabelRule, as_gradient, infer
from adversary.learned import decoder
from adversary.learned.spent import enough, remark, spent
from adversary.search.optimizers import Count, Rate
from fl_app.core.local import LocalRule, Tensors
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Images

TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class FGLA(Attack):
    """Reads what enters the last linear layer off its gradient, and decodes it as it learned on public images.

    A row of that gradient over the bias's entry is the feature of the class's example, once what the other examples add to
    each row is taken off, as absent classes show it. Of a class that is there several times it is the mean, so its examples get
    one picture. The decoder is ours: a line and an MLP in the place of the paper's transposed convolutions.
    """

    trained: ClassVar[bool] = True
    labels: LabelRule = "count"
    hidden: Annotated[int, Field(ge=1, le=2**14)] = 1024
    epochs: Annotated[int, Field(ge=0, le=10_000)] = 6
    lr: Rate = 3e-4
    batch: Count = 256
    flips: bool = True
    """Whether mirrored images are learned from, too (ours): not for digits."""
    public: Annotated[int, Field(ge=500, le=10**6)] = 10_000
    """The most public examples that it learns from."""

    @property
    def public_wanted(self) -> int:  # type: ignore[override]
        """As many as it is set to."""
        return self.public

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """The decoder, at the weights of the round; the defense does not matter to it."""
        if not isinstance(task.space, Images):
            raise AttackError("fgla rebuilds images: for rows of a table use ridge")
        name, began, public = last_linear(task.model, seen.update), time.monotonic(), enough("fgla", public, self.public)
        x, y = public.x, public.y
        if self.flips:
            x, y = torch.cat([x, x.flip(-1)]), torch.cat([y, y])
        features = entering(task.model, seen.params, name, x)
        training = decoder.Training(hidden=self.hidden, epochs=self.epochs, lr=self.lr, batch=self.batch)
        # Features say what they are without their class.
        known = decoder.Known(features, x.flatten(1), torch.zeros_like(y), torch.arange(len(y)) % len(public.y))
        found = decoder.learned(known, 1, training, rng)
        return {**found, **spent(public, began)}

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """The decoded features of each update's classes; how far they explain it is not looked at, so the loss is 0."""
        name = last_linear(task.model, seen[0].update)
        if not self.learned:
            raise AttackError("fgla learns from public examples first, and there are none here")
        pairs = list(zip(seen, streams, strict=True))
        y = torch.stack([infer(self.labels, one, task, stream) for one, stream in pairs])
        features = torch.stack([class_features(as_gradient(one), name, own) for one, own in zip(seen, y, strict=True)])
        flat = features.flatten(0, 1).nan_to_num()
        x = decoder.decoded(self.learned, flat, torch.zeros(len(flat), dtype=torch.int64))
        shape = (len(seen), seen[0].num_examples, *task.space.shape)
        return Guess(x.view(shape), y.to(x.device), x.new_zeros(len(seen)), remark=remark(self.learned))

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """Nothing: what it learned does not depend on the defense."""
        return []

    def cost(self, examples: int, rule: LocalRule) -> float:
        """As much as a few iterations per target: nearly all of its work is done before."""
        return 100.0 * examples * rule.steps


def last_linear(model: nn.Module, update: Tensors) -> str:
    """The last linear layer, if it has a bias; AttackError otherwise."""
    linear = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not linear or f"{linear[-1]}.bias" not in update:
        raise AttackError("fgla reads features off a last linear layer with a bias, and this model has none: use lti")
    return str(linear[-1])


def class_features(gradient: Tensors, layer: str, y: Tensor) -> Tensor:
    """What entered the layer for each of the classes y (examples,): (examples, features).

    Rows of absent classes c are sum_b p_b[c] h_b / B; over their own entry of the bias they are one vector where the network's
    answers to all examples are alike, and so say what the B - 1 other examples add to the row of a class.
    """
    weight, bias = gradient[f"{layer}.weight"], gradient[f"{layer}.bias"]
    absent = torch.ones(len(bias), dtype=torch.bool, device=bias.device)
    absent[y] = False
    share = (len(y) - 1) / len(y) if bool(absent.any()) else 0.0
    other_weight = share * weight[absent].mean(0) if share else torch.zeros_like(weight[0])
    other_bias = share * bias[absent].mean() if share else torch.zeros_like(bias[0])
    below = bias[y] - other_bias
    return (weight[y] - other_weight) / torch.where(below.abs() < TINY, -TINY, below)[:, None]


def entering(model: nn.Module, params: Tensors, layer: str, x: Tensor) -> Tensor:
    """What enters a layer of examples x (n, *shape): (n, features)."""
    kept: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_pre_hook(lambda _, given: kept.append(given[0].detach()))
    try:
        with torch.no_grad():
            for part in x.split(500):
                functional_call(model, params, (part,))
    finally:
        handle.remove()
    return torch.cat(kept).flatten(1)
