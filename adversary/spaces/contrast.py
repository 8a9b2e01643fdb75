"""Images of a contrast that is held fixed, where a model does not show it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call

from adversary.base import AttackError
from adversary.spaces.base import Continuing, Free, Parametrisation, Variables
from adversary.spaces.pixels import scale_of
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task
from fl_app.core.spec import Named, Registry

TINY = 1e-12
ALIKE = 0.05
"""Of the difference that another image makes: padding and a little constant in each layer show some contrast (ours)."""
FROM_BLACK = 0.55
"""What a standard deviation of the data is to a model that takes pixels as they are, whose black is 0."""


def _spaces() -> Registry[Parametrisation]:
    from adversary.spaces import SPACES  # which lists this one

    return SPACES


@dataclass(frozen=True, kw_only=True)
class Contrast(Parametrisation):
    """The images of another space, each scaled to the same distance from the data's mean colour, if the model hides it (ours).

    A normalisation layer behind the first convolution takes away the scale of the normalised image, and the gradient does so,
    too: an image and the same with twice the contrast send the same update. Searches drift along this direction, and total
    variation ends at grey. Where a model does show the contrast, this is the other space.
    """

    space: Annotated[Parametrisation, Named("space", _spaces)]
    rms: Annotated[float, Field(gt=0, le=10)] = 0.9
    """Root of the mean square of an image, in standard deviations of the data from its mean; the default is that of photos."""

    def over(
        self, targets: Sequence[tuple[Observation, ...]], task: Task, classes: Tensor | None, learned: Tensors
    ) -> Variables:
        """The scaled images, or those of the other space where the model of these targets shows their contrast."""
        found = self.bind(task, classes, learned)
        return found if hides_contrast(task, targets[0][0].params) else self.space.over(targets, task, classes, learned)

    def bind(self, task: Task, classes: Tensor | None = None, learned: Tensors | None = None) -> Variables:
        """The scaled images of a task."""
        if self.space.weighs or len(task.space.shape) != 3:
            raise AttackError("the space contrast is for images, and for spaces that have no penalty of their own")
        return _Scaled(self, self.space.bind(task, classes, learned), task)


def hides_contrast(task: Task, params: Tensors) -> bool:
    """Whether a model says the same of an image and of one with half its contrast, as far as it tells images apart."""
    mean, std = scale_of(task)
    exact = {name: value.double() for name, value in params.items()}  # some hardly tell images apart
    u = torch.randn(2, *task.space.shape, generator=torch.Generator().manual_seed(0)).to(next(iter(params.values())))
    with torch.no_grad():
        one, half, other = (functional_call(task.model, exact, ((mean + std * x).double(),)) for x in (u[:1], u[:1] / 2, u[1:]))
    return bool((one - half).abs().max() < ALIKE * (one - other).abs().max())


class _Scaled(Free):
    def __init__(self, settings: Contrast, inner: Variables, task: Task) -> None:
        self.inner, (self.mean, self.std) = inner, scale_of(task)
        self.rms = settings.rms * (1 if isinstance(self.std, Tensor) else FROM_BLACK)

    def draw(self, seeds: int, examples: int, stream: torch.Generator) -> Tensors:
        return self.inner.draw(seeds, examples, stream)

    def continued(self, z: Tensors, before: Variables) -> Tensors:
        """As the other space does."""
        if not isinstance(self.inner, Continuing):
            raise AttackError("the space within contrast cannot start from another one: it is no phase")
        return self.inner.continued(z, before)

    def inputs(self, z: Tensors) -> Tensor:
        u = (self.inner.inputs(z) - self.mean) / self.std
        size = (u.square().mean((-3, -2, -1), keepdim=True) + TINY).sqrt()
        return self.mean + self.std * (self.rms / size) * u

    def project(self, z: Tensors) -> Tensors:
        return self.inner.project(z)
