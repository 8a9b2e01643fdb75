"""Passive property inference (Melis et al. 2019, section 5): a classifier of updates, trained on those of public batches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import Attack, AttackError, Belief, Facts, Informed, Public
from adversary.inference.base import sent
from adversary.inference.updates import THROUGH, public_attribute, ridge, simulated, sizes
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task
from fl_app.core.space import attribute_values


@dataclass(frozen=True, kw_only=True)
class Property(Attack):
    """Whether any example of a batch has a value of a column, by ridge regression on the sizes of the entries of updates.

    Half of the public batches that it learns from have such an example, half none, at the weights of the round. The paper's
    random forest is replaced by a linear model (ours).
    """

    trained: ClassVar[bool] = True
    column: Annotated[str, Field(min_length=1)]
    value: Annotated[str, Field(min_length=1)]
    batches: Annotated[int, Field(ge=20, le=10**5)] = 600
    through: str = ""
    """The spec of the defense that public batches are passed through."""

    @property
    def question(self) -> str:  # type: ignore[override]
        """Whether an example has the value."""
        return f"property:{self.column}={self.value}"

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """The same, trained on what the defense makes of public batches."""
        return [Informed("", replace(self, through=defense), THROUGH)] if defense != "none" else []

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """The direction (1, size) and the middle (size,) of the sizes of updates with and without the property."""
        has = self._having(task, public)
        chosen = drawn(has, self.batches, seen.num_examples, rng)
        found = sizes(simulated(task, seen, public, chosen, self.through, rng))
        truth = has[chosen].any(1).to(found)[:, None] * 2 - 1
        middle = found.mean(0)
        return {"direction": ridge(found - middle, truth - truth.mean()), "middle": middle}

    def _having(self, task: Task, public: Public) -> Tensor:
        places = public_attribute(task, public, self.column)
        values = attribute_values(task.space, self.column)
        if self.value not in values:
            raise AttackError(f"the column '{self.column}' has the values {', '.join(values)}, not '{self.value}'")
        return places == values.index(self.value)

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Belief:
        """Where each update lies along the direction, (targets, 1): above 0 it has the property."""
        if not self.learned:
            raise AttackError("property inference is trained on public examples first, and there are none here")
        found = sizes(torch.stack([sent(one) for one in seen]))
        return Belief((found - self.learned["middle"]) @ self.learned["direction"].T)


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
