"""DP-SGD (Abadi et al. 2016)."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from client_defenses.base import Defense, Memory
from client_defenses.tools.noise import Noise
from client_defenses.tools.per_example import by_vmap, clipped_sum, refuse_batch_norm
from fl_app.core.local import Step, Tensors


@dataclass(frozen=True, kw_only=True)
class DPSGD(Defense):
    """DP-SGD (Algorithm 1): clip each example's gradient to norm `clip`, add N(0, (noise * clip)^2) to the sum, average.

    Neighbours differ in one example, whose gradient counts as zero where it is missing, so the sum changes by `clip` at most.
    `expected` stays the identity: clipping changes the mix of the examples, but an attacker cannot know by how much.
    """

    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0

    def gradient(self, step: Step, memory: Memory) -> Tensors:
        """Take the clipped, noisy mean."""
        refuse_batch_norm(step.model, "dp_sgd")
        batch = len(step.x)
        scale = self.noise * self.clip
        return {
            name: ((value.float() + scale * memory.normal(value)) / batch).to(value)
            for name, value in clipped_sum(step, self.clip).items()
        }

    def noise_multiplier(self) -> float:
        """Noise on the sum over the most that one example can change it."""
        return self.noise

    def noise_law(self) -> Noise | None:
        """Of the clipped sum."""
        return Noise(scale=self.noise * self.clip, clip=self.clip, summed=True) if self.noise > 0 else None

    def before_noise(self, step: Step, memory: Memory) -> Tensors:
        """The clipped sum."""
        refuse_batch_norm(step.model, "dp_sgd")
        return by_vmap(step, self.clip)
