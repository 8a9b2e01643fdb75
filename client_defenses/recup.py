"""RecUP-FL (Cui et al. 2023, "Reconciling Utility and Privacy in FL via User-configurable Privacy Defense")."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from client_defenses.base import Defense, Memory
from client_defenses.tools import bank as banks
from fl_app.core.local import Step, Tensors
from fl_app.core.space import Space, attribute_values
from fl_app.core.spec import SpecError
from fl_app.core.table import Rows
from fl_app.core.text import Tokens

RIDGE = 0.1
"""Of the substitutes, as a share of the mean square of what they learn from (ours)."""


@dataclass(frozen=True, kw_only=True)
class RecUP(Defense):
    """RecUP-FL: adds a small perturbation to the gradient that leads models astray which read one attribute off it.

    What is known of it is its abstract: the user names a sensitive attribute; a zoo of substitute models stands for the
    adversary's; the perturbation comes from adversarial steps that alternate between those models at hand (white box) and one
    that was kept back (black box), as in meta-learning, and its size is bounded. Ours, as neither the paper nor its code is at
    hand:

    - The substitutes are linear: ridge regressions on random halves of the gradient's entries. Of a table they learn from the
      client's own rows with each value of the attribute in turn. An image cannot be had with another value: there they learn
      from gradients of public images of the same classes, as the paper's networks do from gradients of other data.
    - The bound is on the L2 norm, `eps` times that of the gradient. Each step goes up the cross-entropy of the true values
      under the substitutes at hand, and under the one kept back as it is after that step. Of images these are not the true
      values, but those that the substitutes together believe in first.
    - `attribute` is a column of categories, of a table or beside images; without one, the class is what is hidden.

    `expected` stays the identity: what is added depends on the client's examples and draws. An informed attacker takes it for
    noise of that size, or passes what it tries through this code.
    """

    eps: Annotated[float, Field(ge=0, le=100)] = 0.5
    attribute: str = ""
    models: Annotated[int, Field(ge=2, le=100)] = 4
    steps: Annotated[int, Field(ge=1, le=1000)] = 10
    block: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] = (0, 0)
    """Where the floats of the attribute are, from and to; looked up by its name."""
    bank: str = ""
    """Public images with the attribute, by their name in the cache; runs make one where this is empty."""
    alike: Annotated[int, Field(ge=1, le=1000)] = 8
    """Public images of each value for each example of a batch."""

    def within(self, space: Space) -> "RecUP":
        """The defense with its attribute's place in a row."""
        if isinstance(space, Tokens):
            raise SpecError("recup hides an attribute, a column of a table, and these examples are text")
        if not self.attribute:
            return self
        try:
            attribute_values(space, self.attribute)
        except ValueError as error:
            raise SpecError(f"recup: {error}") from None
        if not isinstance(space, Rows):
            return self
        place = space.places[self.attribute]
        return replace(self, block=(place.start, place.stop))

    def on_gradient(self, grads: Tensors, step: Step, memory: Memory) -> Tensors:
        """The gradient with the perturbation."""
        if not self.eps:
            return grads
        flat = torch.cat([value.flatten().float() for value in grads.values()])
        if self.attribute and self.block == (0, 0):
            if not self.bank:
                raise SpecError("recup does not know the place of its attribute: call within(space) first; images need a bank")
            zoo = substitutes(self._public(step, memory), self.models, memory, paired=False)
            shares = zoo.believed(flat)
        else:
            tried, shares = self._counterfactuals(step)
            zoo = substitutes(tried, self.models, memory)
        moved = flat + self._perturbation(flat, zoo, shares, memory)
        parts = moved.split([value.numel() for value in grads.values()])
        return {name: part.view_as(value).to(value) for (name, value), part in zip(grads.items(), parts, strict=True)}

    def _counterfactuals(self, step: Step) -> tuple[Tensor, Tensor]:
        """Gradients of each example with each value, (values, examples, size), and the true share of each value (values,)."""
        first, last = self.block
        if self.attribute:
            number, shares = last - first, step.x[:, first:last].float().mean(0)
            x, y = step.x.repeat(number, 1), step.y.repeat(number)
            x[:, first:last] = torch.eye(number).to(x).repeat_interleave(len(step.y), 0)
        else:
            with torch.no_grad():
                number = functional_call(step.model, step.params, (step.x[:1],)).shape[1]
            shares = F.one_hot(step.y, number).float().mean(0)
            x, y = (
                step.x.repeat(number, *[1] * (step.x.ndim - 1)),
                torch.arange(number).to(step.y).repeat_interleave(len(step.y)),
            )
        return _gradients(step, x, y).view(number, len(step.y), -1), shares

    def _public(self, step: Step, memory: Memory) -> Tensor:
        """Gradients of public images with each value, of the classes of the batch, (values, examples * alike, size)."""
        x, y = banks.load(self.bank).alike(step.y, self.alike, memory.rng)
        if x.shape[2:] != step.x.shape[1:]:
            raise SpecError(f"recup: its public images are {tuple(x.shape[2:])}, those of the batch {tuple(step.x.shape[1:])}")
        found = _gradients(step, x.flatten(0, 1).to(step.x), y.flatten().to(step.y))
        return found.view(len(x), x.shape[1], -1)

    def _perturbation(self, flat: Tensor, zoo: "Zoo", shares: Tensor, memory: Memory) -> Tensor:
        """What is added, (size,), by steps of which one substitute learns only at the end."""
        radius = self.eps * flat.norm()
        delta, length = torch.zeros_like(flat), 2 * radius / self.steps
        for _ in range(self.steps):
            back = int(torch.randint(self.models, (), generator=memory.rng))
            others = [k for k in range(self.models) if k != back]
            at_hand = torch.stack([zoo.slope(k, flat + delta, shares) for k in others]).mean(0)
            ahead = delta + length * _direction(at_hand)
            kept_back = zoo.slope(back, flat + ahead, shares)
            delta = delta + length * _direction(_direction(at_hand) + _direction(kept_back))
            delta = delta * (radius / delta.norm().clamp_min(1e-30)).clamp_max(1)
        return delta


def _gradients(step: Step, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of each example at a step's weights, (examples, size)."""
    each = Step(step.params, step.model, x, y).per_example_gradients()
    return torch.cat([value.detach().flatten(1).float() for value in each.values()], 1)


class Zoo:
    """Linear models of an attribute, (values, size) each, with the entries that each sees and the middle of what it learned."""

    def __init__(self, weights: Tensor, middle: Tensor) -> None:
        self.weights, self.middle = weights, middle

    def slope(self, k: int, flat: Tensor, shares: Tensor) -> Tensor:
        """Where the cross-entropy of the true shares (values,) under a model grows, (size,)."""
        logits = self.weights[k] @ (flat - self.middle)
        return (logits.softmax(0) - shares) @ self.weights[k]

    def believed(self, flat: Tensor) -> Tensor:
        """The value that all models together read off a gradient, as shares (values,)."""
        logits = self.weights.mean(0) @ (flat - self.middle)
        return F.one_hot(logits.argmax(), len(logits)).to(flat)


def substitutes(tried: Tensor, number: int, memory: Memory, *, paired: bool = True) -> Zoo:
    """Ridge regressions from gradients (values, examples, size) to values, on random halves of the entries.

    Where the same examples are tried with each value, what tells them apart is taken out first: of each, the differences
    between values are learned.
    """
    values, examples, size = tried.shape
    spread = (tried - tried.mean(0 if paired else (0, 1))).flatten(0, 1)
    wanted = torch.eye(values).to(tried).repeat_interleave(examples, 0) - 1 / values
    found = []
    for _ in range(number):
        seen = spread * (torch.rand(size, generator=memory.rng) < 0.5).to(spread)
        kernel = (seen @ seen.T).double()
        ridge = RIDGE * kernel.diagonal().mean() + 1e-30
        dual = torch.linalg.solve(kernel + ridge * torch.eye(len(kernel)).to(kernel), wanted.double())
        found.append(dual.T.to(seen) @ seen)
    return Zoo(torch.stack(found), tried.mean((0, 1)))


def _direction(value: Tensor) -> Tensor:
    size: Tensor = value.norm().clamp_min(1e-30)
    return value / size
