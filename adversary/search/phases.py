"""Searches one after the other, each over another space from where the last one ended."""

from dataclasses import dataclass
from typing import Annotated

from adversary.search.optimizers import OPTIMIZERS, Optimizer
from adversary.spaces import SPACES, Parametrisation
from fl_app.core.spec import Checked, Named, SpecError


@dataclass(frozen=True, kw_only=True)
class Phase(Checked):
    """A further search: what is searched then, and by which steps. Its answer is taken where it explains the update better."""

    space: Annotated[Parametrisation, Named("space", lambda: SPACES)]
    optimizer: Annotated[Optimizer, Named("optimizer", lambda: OPTIMIZERS)]
    pooled: bool = False
    """Start from the mean of all seeds before it, instead of the best (ours)."""

    def __post_init__(self) -> None:
        """It starts where the search before it ended, and nowhere else."""
        super().__post_init__()
        if self.optimizer.restarts > 1:
            raise SpecError("a phase starts from what was found before it: leave restarts to the first search")


PHASES = {"phase": Phase}
