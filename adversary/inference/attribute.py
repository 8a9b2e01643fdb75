"""An attribute of rows that are known up to it: which values explain the update."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import Attack, AttackError, Belief, Facts, Informed
from adversary.inference.base import asked_of, gradients, sent
from fl_app.core.observation import Candidates, Observation, Task

SWEEPS = 20
"""Most times that the values of all rows are gone over."""
SIMULATED = 2
"""The same where each try goes through a defense."""
THROUGH = "passes each batch that it tries through the defense, but for noise of a known law"


@dataclass(frozen=True, kw_only=True)
class Attribute(Attack):
    """Of each row of a batch the value of one column, given all others and the class: that whose gradients match.

    The update is the mean of the rows' gradients, and so linear in the choices of values: least squares gives a first choice,
    then one row after the other takes the value with which the cosine is largest, until nothing changes. A value's score is
    the cosine with it and with the others' last choices. Entries that are zero in the update are left out: a defense took them.
    """

    column: Annotated[str, Field(min_length=1)]
    through: str = ""
    """The spec of the defense that batches are passed through, each with one row changed from what is chosen for the others."""
    draws: Annotated[int, Field(ge=1, le=1000)] = 4
    """How often, where the defense draws in another way than by adding noise."""

    @property
    def question(self) -> str:  # type: ignore[override]
        """The attribute of the column."""
        return f"attribute:{self.column}"

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """The same, with candidates that went through the defense."""
        return [Informed("", replace(self, through=defense), THROUGH)] if defense != "none" else []

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Belief:
        """Answer for each target by itself."""
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
