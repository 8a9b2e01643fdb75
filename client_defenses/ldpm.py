"""LDPM (Jiang et al. 2024, IEEE S&P, "Protecting Label Distribution in Cross-Silo Federated Learning")."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from client_defenses.base import Defense, Memory
from client_defenses.tools.layers import linear_layer
from client_defenses.tools.noise import Noise
from client_defenses.tools.per_example import Rows, by_vmap, clipped_sum, refuse_batch_norm
from fl_app.core.local import Step, Tensors


@dataclass(frozen=True, kw_only=True)
class LDPM(Defense):
    """LDPM: of each example's gradient one random class's row goes into the clipped, noisy sum, so labels cannot be counted.

    As in the authors' public code: an example keeps one row of the class layer, drawn evenly, its gradient is clipped to norm
    `clip`, the sum gets N(0, (2 clip noise)^2) (a replaced example moves it by 2 clip), and the mean is scaled by the number
    of classes. They train one layer on fixed features (one-vs-all), with noise 10. Not known: what FedEM does with the other
    layers of its networks, and what its noise scales of 5e-4 .. 0.1 multiply. We keep the other layers whole and unscaled
    under the joint clip, and read the scale as `noise`. `expected` stays the identity; label distributional privacy
    (m, gamma, xi) is not computed, the ordinary epsilon of replaced examples can be.
    """

    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5e-4

    def gradient(self, step: Step, memory: Memory) -> Tensors:
        """Take the noisy mean of what the examples keep."""
        rows, classes = self._rows(step, memory)
        batch, scale = len(step.x), 2 * self.clip * self.noise
        return {
            key: (
                (value.float() + scale * memory.normal(value)) * (classes if key.startswith(f"{rows.layer}.") else 1) / batch
            ).to(value)
            for key, value in clipped_sum(step, self.clip, rows).items()
        }

    def _rows(self, step: Step, memory: Memory) -> tuple[Rows, int]:
        """The row that each example keeps, and the number of classes."""
        refuse_batch_norm(step.model, "ldpm")
        name, layer = linear_layer(step.model)
        classes = layer.out_features
        drawn = torch.randint(0, classes, (len(step.x),), generator=memory.rng)
        return Rows(name, drawn.to(step.x.device)), classes

    def noise_multiplier(self) -> float:
        """Noise on the sum over the most that a replaced example can change it."""
        return self.noise

    def noise_law(self) -> Noise | None:
        """Of the clipped sum, for somebody who also knows which rows were kept."""
        return Noise(scale=2 * self.clip * self.noise, clip=self.clip, summed=True) if self.noise > 0 else None

    def before_noise(self, step: Step, memory: Memory) -> Tensors:
        """The clipped sum of what the examples keep; the class layer's factor can be undone."""
        return by_vmap(step, self.clip, self._rows(step, memory)[0])
