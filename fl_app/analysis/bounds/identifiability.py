"""How many directions of the examples an update shows at all: a statement about attackers without any prior."""

import torch
from pydantic import BaseModel, ConfigDict

from fl_app.analysis.bounds.sensitivity import Sensitivity, Tick, random_directions, silent

EXACT = 2 * 10**8
"""Entries times unknowns up to which the whole Jacobian is decomposed."""
LEAST, MOST = 64, 2**25
"""Directions that are tried at least on a larger one, and numbers that their moved updates may hold beyond that."""
STEPS = 16
"""Lanczos steps for the largest singular value of a larger one."""
ROUNDING = 2.0**-24
"""Relative rounding of what is sent in float32."""


class Identifiability(BaseModel):
    """Rank and spectrum of d(update) / dx at one x."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    entries: int
    """Numbers in the update: equations."""
    unknowns: int
    """Pixels of all examples together."""
    rank_at_least: int
    rank_at_most: int
    """Equal where the whole Jacobian was decomposed."""
    above_rounding: int | None
    """Directions in which a change of length 1 moves the update by more than float32 rounds it; None: not all were tried."""
    largest: float
    """Singular value."""
    median: float | None
    smallest: float | None
    directions: int
    """How many were tried."""

    @property
    def exact(self) -> bool:
        """Whether the rank is known."""
        return self.rank_at_least == self.rank_at_most

    def sentence(self) -> str:
        """What it means, in one plain sentence."""
        counted = f"{self.entries:,} equations for {self.unknowns:,} unknowns"
        if self.rank_at_most < self.unknowns:
            lost = self.unknowns - self.rank_at_most
            return (
                f"{counted}: no attack without a prior can rebuild the batch, at least {lost:,} directions of it do not "
                "change the update"
            )
        if self.exact:
            told = f"{counted}, and all {self.unknowns:,} directions change the update: counting forbids nothing"
            if self.above_rounding is not None and self.above_rounding < self.unknowns:
                told += f", but only {self.above_rounding:,} directions change it by more than float32 rounds it"
            return told
        return (
            f"{counted}: counting forbids nothing; at least {self.rank_at_least:,} directions change the update "
            f"({self.directions:,} tried)"
        )


def is_exact(entries: int, unknowns: int) -> bool:
    """Whether the whole Jacobian is decomposed."""
    return entries * unknowns <= EXACT


def directions_for(entries: int, unknowns: int) -> int:
    """How many directions are tried unless somebody says otherwise: all where that is quick."""
    if is_exact(entries, unknowns):
        return unknowns
    return min(unknowns, max(LEAST, MOST // entries))


def identifiability(
    sensitivity: Sensitivity, directions: int, rng: torch.Generator, norm: float, tick: Tick = silent
) -> Identifiability:
    """Exactly if all directions are asked for, else from random ones; `norm` is that of the update, for its rounding."""
    entries, unknowns = sensitivity.entries, sensitivity.unknowns
    most = min(entries, unknowns)
    if directions >= unknowns:
        values = sensitivity.everything(tick)
        rank = int((values > max(entries, unknowns) * torch.finfo(sensitivity.x.dtype).eps * values[0]).sum())
        return Identifiability(
            entries=entries,
            unknowns=unknowns,
            rank_at_least=rank,
            rank_at_most=rank,
            above_rounding=int((values > ROUNDING * norm).sum()),
            largest=values[0].item(),
            median=values[len(values) // 2].item(),
            smallest=values[-1].item(),
            directions=unknowns,
        )
    squares = torch.linalg.eigvalsh(sensitivity.gram(random_directions(directions, unknowns, rng), tick))
    # What rounding may have made is not counted: the rank is at least this.
    seen = int((squares > 10 * directions * torch.finfo(sensitivity.x.dtype).eps * squares[-1]).sum())
    return Identifiability(
        entries=entries,
        unknowns=unknowns,
        rank_at_least=min(seen, most),
        rank_at_most=most,
        above_rounding=None,
        largest=sensitivity.lanczos(STEPS, rng, tick)[0].item(),
        median=None,
        smallest=None,
        directions=directions,
    )
