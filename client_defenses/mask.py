"""Random masking: some entries are not sent."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from client_defenses.base import Defense, Memory
from client_defenses.prune import without_smallest
from fl_app.core.local import Tensors


@dataclass(frozen=True, kw_only=True)
class Mask(Defense):
    """Zeroes exactly floor(ratio * entries) of the whole gradient, drawn anew each step; the others stay as they are."""

    ratio: Annotated[float, Field(ge=0, le=1)] = 0.25

    def transform(self, grads: Tensors, memory: Memory) -> Tensors:
        """Zero the entries with the smallest of as many uniform draws."""
        if self.ratio == 0:
            return grads
        return without_smallest(grads, {name: memory.uniform(value) for name, value in grads.items()}, self.ratio)
