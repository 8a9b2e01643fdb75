"""An attribute of a client's examples: of rows that are known up to it, or of images, learned from those of others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from adversary.base import Attack, AttackError, Belief, Facts, Informed, Public
from adversary.inference import updates
from adversary.inference.base import asked_of, gradients, sent
from fl_app.core.local import Tensors
from fl_app.core.observation import Candidates, Observation, Task
from fl_app.core.space import Space, attribute_values
from fl_app.core.table import Rows

SWEEPS = 20
"""Most times that the values of all rows are gone over."""
SIMULATED = 2
"""The same where each try goes through a defense."""
THROUGH = "passes each batch that it tries or learns from through the defense, but for noise of a known law"


@dataclass(frozen=True, kw_only=True)
class Attribute(Attack):
    """Of each row of a batch the value of one column, given all others and the class; of images the one that most have.

    The update is the mean of the rows' gradients, and so linear in the choices of values: least squares gives a first choice,
    then one row after the other takes the value with which the cosine is largest, until nothing changes. A value's score is
    the cosine with it and with the others' last choices. Entries that are zero in the update are left out: a defense took them.

    An image cannot be known up to its attribute. There the share of each value in a batch is learned by ridge regression from
    public batches in which all values are about as frequent, as `property` learns its own (Melis et al. 2019; the model is
    ours).
    """

    trained: ClassVar[bool] = True
    column: Annotated[str, Field(min_length=1)]
    through: str = ""
    """The spec of the defense that batches are passed through, of rows each with one changed from what is chosen for others."""
    draws: Annotated[int, Field(ge=1, le=1000)] = 4
    """How often, where the defense draws in another way than by adding noise; of rows."""
    batches: Annotated[int, Field(ge=20, le=10**5)] = 600
    """Public batches to learn from; of images."""

    @property
    def question(self) -> str:  # type: ignore[override]
        """The attribute of the column."""
        return f"attribute:{self.column}"

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """The same, with candidates that went through the defense."""
        return [Informed("", replace(self, through=defense), THROUGH)] if defense != "none" else []

    def learns_from(self, space: Space) -> bool:
        """Of rows there is nothing to learn."""
        return not isinstance(space, Rows)

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """The directions (values, size) and the middle (size,) of the sizes of updates of public images."""
        if not self.learns_from(task.space):
            return {}
        places = updates.public_attribute(task, public, self.column)
        counts = places.bincount(minlength=len(attribute_values(task.space, self.column)))
        if int((counts > 0).sum()) < 2:
            raise AttackError(f"all public examples have the same '{self.column}': there is nothing to learn from")
        examples = self.batches * seen.num_examples
        chosen = torch.multinomial(1 / counts[places].cpu(), examples, replacement=True, generator=rng).view(self.batches, -1)
        found = updates.sizes(updates.simulated(task, seen, public, chosen, self.through, rng))
        shares = F.one_hot(places[chosen], len(counts)).to(found).mean(1)
        middle = found.mean(0)
        return {"direction": updates.ridge(found - middle, shares - shares.mean(0)), "middle": middle}

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Belief:
        """Answer for each target by itself."""
        if self.learns_from(task.space):
            if not self.learned:
                raise AttackError("the attribute of images is learned from public ones first, and there are none here")
            found = updates.sizes(torch.stack([sent(one) for one in seen]))
            return Belief((found - self.learned["middle"]) @ self.learned["direction"].T)
        pairs = zip(seen, streams, strict=True)
        return Belief(torch.stack([self._target(one, task, asked_of(one), stream) for one, stream in pairs]))

    def _target(self, seen: Observation, task: Task, asked: Candidates, stream: torch.Generator) -> Tensor:
        rows = seen.num_examples
        if len(asked.y) % rows:
            raise AttackError(
                f"the attribute of {rows} rows is asked about with each value of each, not {len(asked.y)} candidates"
            )
        update = sent(seen)
        kept = update != 0
        tried = torch.cat(list(gradients(task, seen, asked)))[:, kept]
        size: Tensor = update.norm().clamp_min(1e-30)
        plain = explained(tried @ update[kept], tried @ tried.T, rows) / size
        return self._simulated(seen, task, asked, stream, plain.view(rows, -1).argmax(1)) if self.through else plain

    def _simulated(self, seen: Observation, task: Task, asked: Candidates, stream: torch.Generator, chosen: Tensor) -> Tensor:
        """The match of each candidate's batch after the defense, (candidates,), from first choices (rows,) on."""
        from adversary.informed.simulate import through  # only informed attackers know defenses

        rows, update = len(chosen), sent(seen)
        x, y = asked.x.unflatten(0, (rows, -1)), asked.y.view(rows, -1)
        scores = asked.x.new_zeros(y.shape)
        for _ in range(SIMULATED):
            for row in range(rows):
                batch = x[torch.arange(rows), chosen].repeat(y.shape[1], *[1] * (x.ndim - 1))
                batch[:, row] = x[row]
                own = y[:, 0].expand(y.shape[1], rows)
                found = through(self.through, task, seen, batch, own, stream, self.draws, noise=False)
                scores[row] = torch.cosine_similarity(found, update[None])
                chosen[row] = scores[row].argmax()
        return scores.flatten()


def explained(inner: Tensor, outer: Tensor, rows: int) -> Tensor:
    """For each candidate (rows * values,) the best match of a choice of one value per row that has it, times the update's size.

    `inner` (candidates,) are the products of candidates with the update, `outer` (candidates, candidates) those among them.
    """
    values = len(inner) // rows
    first = torch.arange(rows, device=inner.device) * values
    shares = torch.linalg.pinv(outer.double(), rtol=1e-9, hermitian=True) @ inner.double()
    chosen = first + shares.view(rows, values).argmax(1)
    for _ in range(SWEEPS):
        before = chosen.clone()
        for row in range(rows):
            chosen[row] = first[row] + _matches(inner, outer, chosen, row, values).argmax()
        if torch.equal(before, chosen):
            break
    return torch.cat([_matches(inner, outer, chosen, row, values) for row in range(rows)])


def _matches(inner: Tensor, outer: Tensor, chosen: Tensor, row: int, values: int) -> Tensor:
    """The match with each value of a row, (values,), given the choices of all others."""
    others = torch.cat([chosen[:row], chosen[row + 1 :]])
    own = torch.arange(row * values, (row + 1) * values, device=inner.device)
    product = inner[others].sum() + inner[own]
    square = outer[others][:, others].sum() + 2 * outer[own][:, others].sum(1) + outer[own, own]
    return product / square.clamp_min(1e-30).sqrt()
