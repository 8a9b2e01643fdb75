"""The one rule by which a client turns examples into an update.

The client runs it and the attack differentiates through it, so the two cannot drift apart. This file imports
nothing else of ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

Tensors = dict[str, Tensor]
"""Parameter name -> tensor; the only container of weights and updates."""


def finite(value: Tensor) -> bool:
    """Whether all values are finite; by numpy, which is ten times faster than torch on a small tensor."""
    if value.dtype in (torch.float32, torch.float64) and not value.is_cuda:
        return bool(np.isfinite(value.numpy()).all())
    return not value.is_floating_point() or bool(value.isfinite().all())


@dataclass(frozen=True, kw_only=True)
class LocalRule:
    """The public protocol of a round: a FedSGD gradient, or the weight change of several local SGD or Adam steps."""

    kind: Literal["gradient", "delta"] = "gradient"
    batch_size: int = 8
    steps: int = 1
    lr: float = 1.0
    examples: int = 0
    """Distinct examples used in a round; 0 means batch_size * steps, fewer means that the steps go over them again."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """What takes the local steps; Adam and momentum start anew in each round."""
    momentum: float = 0.0
    """Of local SGD, as in torch.optim.SGD: the velocity starts as the first gradient."""
    weight_decay: float = 0.0
    """What is added to each gradient of a local step, times the weights, as in torch.optim."""
    shuffle: bool = False
    """Whether each epoch of local steps goes over the examples in an order of its own, which the server does not see."""

    def __post_init__(self) -> None:
        if self.kind not in ("gradient", "delta"):
            raise ValueError(f"the update kind must be 'gradient' or 'delta', not {self.kind!r}")
        if self.batch_size < 1 or self.steps < 1 or self.examples < 0:
            raise ValueError("batch_size and steps must be at least 1, examples at least 0")
        if self.kind == "gradient" and (self.steps, self.examples) != (1, 0):
            raise ValueError(
                "a gradient update has exactly one step on one batch: local steps need update='delta' (a rule's kind)"
            )
        if self.optimizer not in ("sgd", "adam"):
            raise ValueError(f"the local optimizer must be 'sgd' or 'adam', not {self.optimizer!r}")
        if self.kind == "gradient" and self.optimizer != "sgd":
            raise ValueError("a gradient update takes no local steps, so it has no local optimizer; use kind 'delta'")
        if not (0 <= self.momentum < 1 and 0 <= self.weight_decay < math.inf):
            raise ValueError("the local momentum must be in [0, 1), the local weight decay at least 0 and finite")
        if self.kind == "gradient" and (self.momentum or self.weight_decay):
            raise ValueError("a gradient update takes no local steps, so momentum and weight decay must be 0; use kind 'delta'")
        if self.kind == "gradient" and self.shuffle:
            raise ValueError("a gradient update has one batch, so there is nothing to shuffle; use kind 'delta'")
        if self.optimizer == "adam" and self.momentum:
            raise ValueError("local Adam has no momentum to set; the local momentum must be 0, or the local optimizer 'sgd'")
        if not (math.isfinite(self.lr) and (self.kind == "gradient" or self.lr > 0)):
            raise ValueError(f"the local learning rate must be a positive, finite number, not {self.lr}")

    def to_dict(self) -> dict[str, str | int | float | bool]:
        """The rule by the names that it has everywhere: in an experiment, in a training message, in a capture."""
        return {name: getattr(self, field) for name, field in RULE_NAMES.items()}

    def code(self) -> str:
        """The rule as Python makes it, with only what differs from the defaults beside its kind and batch size."""
        shown = {one.name: getattr(self, one.name) for one in fields(self)}
        kept = [name for name, value in shown.items() if name in ("kind", "batch_size") or value != getattr(type(self), name)]
        return f"LocalRule({', '.join(f'{name}={shown[name]!r}' for name in kept)})"

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> LocalRule:
        """The rule among some settings, which may come from outside; ValueError if it is not there or not valid."""
        values: dict[str, Any] = {field: settings.get(name) for name, field in RULE_NAMES.items()}
        for name, field in RULE_NAMES.items():
            kinds = KINDS.get(field, (int,))
            # `type`, not isinstance: True is a whole number to Python.
            if type(values[field]) not in kinds or (kinds == (int,) and values[field] > MOST_EXAMPLES):
                raise ValueError(f"{name} is {str(values[field])[:40]!r}, which is not allowed")
        return cls(**{**values, **{field: float(values[field]) for field in REAL}})

    @property
    def num_examples(self) -> int:
        """How many distinct examples a client with enough data uses in a round."""
        return self.examples or self.batch_size * self.steps

    @property
    def gradients(self) -> float:
        """How many times the learning rate times one gradient the steps of SGD go, if the gradient stays the same."""
        velocity = total = 0.0
        for _ in range(self.steps):
            velocity = self.momentum * velocity + 1
            total += velocity
        return total

    def for_examples(self, number: int) -> LocalRule | None:
        """The rule of a client that takes the same epochs over another number of examples; None if that cannot be told."""
        usual = self.num_examples
        if self.kind == "gradient" or number == usual:
            return self
        epochs, rest = divmod(self.steps, math.ceil(usual / self.batch_size))
        size = min(self.batch_size, number)
        if rest or (epochs > 1 and (usual % min(self.batch_size, usual) or number % size)):
            return None  # no whole epochs, or a short last batch in each of several: `batch` has none
        if self.batch_size > usual:
            return None  # how large a batch would be with more examples is not known
        steps = epochs * math.ceil(number / size)
        return replace(self, batch_size=size, steps=steps, examples=0 if size * steps == number else number)

    def batch(self, step: int, available: int) -> slice:
        """Positions of local step `step` (from 0) among the round's `available` examples."""
        start = step * self.batch_size % available
        return slice(start, min(start + self.batch_size, available))


RULE_NAMES = {
    "update": "kind",
    "batch-size": "batch_size",
    "local-steps": "steps",
    "local-lr": "lr",
    "local-examples": "examples",
    "local-optimizer": "optimizer",
    "local-momentum": "momentum",
    "local-weight-decay": "weight_decay",
    "local-shuffle": "shuffle",
}
"""The one spelling of a rule outside of Python -> its field."""
REAL = ("lr", "momentum", "weight_decay")
"""Fields of a rule that need not be whole numbers."""
KINDS: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "optimizer": (str,),
    "shuffle": (bool,),
    **dict.fromkeys(REAL, (int, float)),
}
"""Field of a rule -> the types that it may have, where it is no whole number."""
MOST_EXAMPLES = 10**9
"""The most examples or steps that a rule may name."""


def loss_of(model: nn.Module, params: Tensors, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy of `model` with weights `params`; `y` holds classes (batch,) or probabilities (batch, classes).

    A language model answers each token with (batch, vocabulary, length) and is told the next ones, (batch, length); if it is
    told classes of texts alone, its inputs are ids and the next ones are those.
    """
    # All parameters are given by name: looking for tied ones would cost a tenth of a small model's gradient.
    logits = functional_call(model, params, (x,), tie_weights=False)
    return F.cross_entropy(logits, next_tokens(x) if logits.ndim == 3 and y.ndim == 1 else y)


NOTHING = -100
"""What stands for the next token where there is none; cross_entropy leaves such places out."""


def next_tokens(ids: Tensor) -> Tensor:
    """Ids (..., length) -> the token behind each, NOTHING at the end and where it is padding (id 0)."""
    following = F.pad(ids[..., 1:], (0, 1))
    return following.masked_fill(following == 0, NOTHING)


class Step(NamedTuple):
    """One gradient computation: x is (batch, *shape) in [0, 1], y as in `loss_of`."""

    params: Tensors
    model: nn.Module
    x: Tensor
    y: Tensor

    def gradient(self) -> Tensors:
        """The gradient of the loss by each parameter, detached: what a client needs, at the least cost."""
        leaves = {name: value.detach().requires_grad_() for name, value in self.params.items()}
        loss = loss_of(self.model, leaves, self.x, self.y)
        grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, grads, strict=True))

    def differentiable_gradient(self) -> Tensors:
        """The same gradient through torch.func: can be differentiated again and vectorised, at a higher cost."""
        return cast(Tensors, grad(lambda params: loss_of(self.model, params, self.x, self.y))(self.params))

    def per_example_gradients(self) -> Tensors:
        """The gradient of each example's own loss, stacked: (batch, *parameter shape)."""

        def one(params: Tensors, x: Tensor, y: Tensor) -> Tensor:
            return loss_of(self.model, params, x[None], y[None])

        return cast(Tensors, vmap(grad(one), in_dims=(None, 0, 0), randomness="different")(self.params, self.x, self.y))


class LocalSGD:
    """SGD with momentum as in torch.optim.SGD, as a differentiable function of the gradients so far."""

    def __init__(self, momentum: float) -> None:
        self._momentum = momentum
        self._velocity: Tensors = {}

    def direction(self, grads: Tensors) -> Tensors:
        """Where a step of rate 1 goes, after one more gradient."""
        if not self._momentum:
            return grads
        before = self._velocity
        # The sum starts as the first gradient itself, not as a share of it.
        self._velocity = {name: self._momentum * before[name] + value if before else value for name, value in grads.items()}
        return self._velocity


class LocalAdam:
    """Adam (Kingma and Ba 2015) with the usual constants, as a differentiable function of the gradients so far."""

    def __init__(self) -> None:
        self._first: Tensors = {}
        self._second: Tensors = {}
        self._steps = 0

    def direction(self, grads: Tensors) -> Tensors:
        """Where a step of rate 1 goes, after one more gradient."""
        self._steps += 1
        if not self._first:
            self._first = {name: torch.zeros_like(value) for name, value in grads.items()}
            self._second = dict(self._first)
        self._first = {name: 0.9 * self._first[name] + 0.1 * value for name, value in grads.items()}
        self._second = {name: 0.999 * self._second[name] + 0.001 * value.square() for name, value in grads.items()}
        found = {}
        for name, first in self._first.items():
            # Without the tiny number the derivative of the root at an entry of zero would not be finite.
            size = (self._second[name] / (1 - 0.999**self._steps) + 1e-24).sqrt()
            found[name] = first / (1 - 0.9**self._steps) / (size + 1e-8)
        return found


Gradient = Callable[[Step], Tensors]


def local_update(
    model: nn.Module,
    params: Tensors,
    x: Tensor,
    y: Tensor,
    rule: LocalRule,
    gradient: Gradient = Step.gradient,
    order: Sequence[Tensor] | Tensor | None = None,
) -> Tensors:
    """What a client with the examples (x, y) sends: its gradient, or weights after minus weights before its steps.

    `order` has the positions of each step's examples, where they are not as `LocalRule.batch` says.
    """
    if rule.kind == "gradient":
        return gradient(Step(params, model, x, y))
    current = params
    optimizer = LocalAdam() if rule.optimizer == "adam" else LocalSGD(rule.momentum)
    for step in range(rule.steps):
        batch = rule.batch(step, len(x)) if order is None else order[step]
        grads = gradient(Step(current, model, x[batch], y[batch]))
        if rule.weight_decay:
            grads = {name: value + rule.weight_decay * current[name] for name, value in grads.items()}
        direction = optimizer.direction(grads)
        current = {name: value - rule.lr * direction[name] for name, value in current.items()}
    # Weights, not accumulated gradients, are what the rule defines; float32 rounding here is the client's own.
    return {name: current[name] - params[name] for name in params}
