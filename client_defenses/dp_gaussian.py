"""Gaussian noise on a clipped gradient: the baseline that every paper compares with."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from client_defenses.base import Defense, Memory
from client_defenses.tools.clipping import clip
from client_defenses.tools.noise import Noise
from client_defenses.tools.precision import narrowed, widened
from fl_app.core.local import Tensors


@dataclass(frozen=True, kw_only=True)
class DPGaussian(Defense):
    """Clips the whole batch's gradient to norm `clip` (None: not at all) and adds N(0, scale²) to every entry."""

    scale: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-2
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 1.0

    def transform(self, grads: Tensors, memory: Memory) -> Tensors:
        """Clip, then add noise."""
        sent = self.expected(widened(grads))
        if self.scale > 0:
            sent = {name: value + self.scale * memory.normal(value) for name, value in sent.items()}
        return narrowed(sent, grads)

    def expected(self, grads: Tensors) -> Tensors:
        """The clipped gradient."""
        return grads if self.clip is None else clip(grads, self.clip)

    def noise_multiplier(self) -> float | None:
        """Noise / sensitivity = scale / (2 clip): a replaced example moves the batch's clipped gradient by at most 2 clip."""
        return self.scale / (2 * self.clip) if self.clip is not None and self.scale > 0 else None

    def noise_law(self) -> Noise | None:
        """Of the clipped gradient."""
        return Noise(scale=self.scale, clip=self.clip) if self.scale > 0 else None
