"""Passive property inference (Melis et al. 2019, section 5): a classifier of updates, trained on those of public batches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from adversary.base import Attack, AttackError, Belief, Facts, Informed, Public
from adversary.inference.base import gradients, sent
from fl_app.core.local import Tensors
from fl_app.core.observation import Candidates, Observation, Task
from fl_app.core.table import Rows

RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""As shares of the mean square of the updates; the best on public batches is taken (ours)."""
THROUGH = "trains on public batches that went through the defense"


@dataclass(frozen=True, kw_only=True)
class Property(Attack):
    """Whether any row of a batch has a value of a column, by ridge regression on the sizes of the entries of updates.

    Half of the public batches that it learns from have such a row, half none, at the weights of the round. The paper's random
    forest is replaced by a linear model (ours): of sizes, as the sign of an entry goes with the classes of the rows.
    """

    trained: ClassVar[bool] = True
    column: Annotated[str, Field(min_length=1)]
    value: Annotated[str, Field(min_length=1)]
    batches: Annotated[int, Field(ge=20, le=10**5)] = 600
    through: str = ""
    """The spec of the defense that public batches are passed through."""

    @property
    def question(self) -> str:  # type: ignore[override]
        """Whether a row has the value."""
        return f"property:{self.column}={self.value}"

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """The same, trained on what the defense makes of public batches."""
        return [Informed("", replace(self, through=defense), THROUGH)] if defense != "none" else []

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """The direction (size,) and the middle (size,) of the sizes of updates with and without the property."""
        has = self._having(task, public.x)
        chosen = drawn(has, self.batches, seen.num_examples, rng)
        sizes = _sizes(self._updates(task, seen, public, chosen, rng))
        truth = has[chosen].any(1).to(sizes) * 2 - 1
        middle = sizes.mean(0)
        return {"direction": ridge(sizes - middle, truth - truth.mean()), "middle": middle}

    def _having(self, task: Task, x: Tensor) -> Tensor:
        if not isinstance(task.space, Rows):
            raise AttackError("properties are columns of a table, and these examples are images")
        values = task.space.values(self.column)
        if self.value not in values:
            raise AttackError(f"the column '{self.column}' has the values {', '.join(values)}, not '{self.value}'")
        return x[:, task.space.places[self.column]][:, values.index(self.value)] > 0.5

    def _updates(self, task: Task, seen: Observation, public: Public, chosen: Tensor, rng: torch.Generator) -> Tensor:
        """What a client with each of these batches (batches, examples) would send, (batches, size)."""
        if self.through:
            from adversary.informed.simulate import through  # only informed attackers know defenses

            return through(self.through, task, seen, public.x[chosen], public.y[chosen], rng, 1)
        shares = F.one_hot(chosen, len(public.y)).sum(1).to(public.x) / chosen.shape[1]
        found, start = torch.zeros(()), 0
        for part in gradients(task, seen, Candidates(*public)):
            found = found + shares[:, start : start + len(part)] @ part
            start += len(part)
        return found

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Belief:
        """Where each update lies along the direction, (targets, 1): above 0 it has the property."""
        if not self.learned:
            raise AttackError("property inference is trained on public examples first, and there are none here")
        sizes = _sizes(torch.stack([sent(one) for one in seen]))
        return Belief(((sizes - self.learned["middle"]) @ self.learned["direction"])[:, None])


def _sizes(updates: Tensor) -> Tensor:
    """The absolute entries of updates (n, size), as shares of their length."""
    return F.normalize(updates, dim=1).abs()


def drawn(has: Tensor, batches: int, size: int, rng: torch.Generator) -> Tensor:
    """Positions (batches, size) in public examples: half of the batches with at least one that has it, half with none."""
    own, other = has.nonzero()[:, 0], (~has).nonzero()[:, 0]
    if len(own) < 2 or len(other) < 2:
        raise AttackError(f"{len(own)} of {len(has)} public examples have the property: there is nothing to learn from")
    found = other[torch.randint(len(other), (batches, size), generator=rng)]
    share = own[torch.randint(len(own), (batches, size), generator=rng)]
    mixed = torch.rand((batches, size), generator=rng) < len(own) / len(has)
    mixed[:, 0] = True  # the order within a batch does not matter
    mixed[batches // 2 :] = False
    return torch.where(mixed, share, found)


def ridge(x: Tensor, y: Tensor) -> Tensor:
    """The weights (size,) of a ridge regression of y (n,) on x (n, size), its strength by leave-one-out error."""
    kernel = (x @ x.T).double()
    scale, best = kernel.diagonal().mean().clamp_min(1e-30), None
    for strength in RIDGES:
        inverse = torch.linalg.inv(kernel + strength * scale * torch.eye(len(x), dtype=kernel.dtype, device=x.device))
        weights = inverse @ y.double()
        error = (weights / inverse.diagonal()).square().mean().item()
        if best is None or error < best[0]:
            best = error, weights
    assert best is not None
    found: Tensor = best[1] @ x.double()
    return found.to(x)
