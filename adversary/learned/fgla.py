"""FGLA (Xue et al. 2023): the features of a batch from the last layer's gradient, and a decoder from features to examples."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from adversary.base import AttackError, Facts, Guess, Informed, Public
from adversary.labels import LabelRule, as_gradient, infer
from adversary.learned import decoder
from adversary.learned.base import Decoding
from adversary.learned.spent import enough, remark, spent
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task

TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class FGLA(Decoding):
    """Reads what enters the last linear layer off its gradient, and decodes it as it learned on public images.

    A row of that gradient over the bias's entry is the feature of the class's example, once what the other examples add to
    each row is taken off, as absent classes show it. Of a class that is there several times it is the mean, so its examples get
    one picture. The decoder is ours: a line and an MLP in the place of the paper's transposed convolutions.
    """

    labels: LabelRule = "count"

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """The decoder, at the weights of the round; the defense does not matter to it."""
        self.of_images(task)
        name, began, public = last_linear(task.model, seen.update), time.monotonic(), enough("fgla", public, self.public)
        used = self.shown(public)
        features = entering(task.model, seen.params, name, used.x)
        # Features say what they are without their class.
        known = self.known(features, used, public, torch.zeros_like(used.y))
        found = decoder.learned(known, 1, self.training, rng)
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
