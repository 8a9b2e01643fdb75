"""The interface of a parametrisation: the free variables z of a search, and the examples that they stand for."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from adversary.base import Public
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task
from fl_app.core.spec import Checked


class Variables(Protocol):
    """Variables by name, each (targets, seeds, ...); reconstructions are (targets, seeds, examples, *shape)."""

    def draw(self, seeds: int, examples: int, stream: torch.Generator) -> Tensors:
        """Random starts of one target on the CPU, each variable (seeds, ...)."""
        ...

    def inputs(self, z: Tensors) -> Tensor:
        """What the model is fed; differentiable."""
        ...

    def project(self, z: Tensors) -> Tensors:
        """The nearest allowed variables, after each step."""
        ...

    def answer(self, z: Tensors) -> Tensor:
        """The reconstructions, on the scale of the task's space."""
        ...

    def penalty(self, z: Tensors) -> Tensor:
        """What the space itself holds against the variables, (targets, seeds); zero if it has no opinion."""
        ...

    def residuals(self, z: Tensors) -> Tensor:
        """The penalty as squares, (targets, seeds, residuals)."""
        ...


class Free(ABC):
    """Variables that may be anything, and of which the space has no opinion: what the model is fed is the answer."""

    @abstractmethod
    def inputs(self, z: Tensors) -> Tensor:
        """What the model is fed."""

    def project(self, z: Tensors) -> Tensors:
        """The same."""
        return z

    def answer(self, z: Tensors) -> Tensor:
        """What the model is fed."""
        return self.inputs(z)

    def penalty(self, z: Tensors) -> Tensor:
        """0."""
        first = next(iter(z.values()))
        return first.new_zeros(first.shape[:2])

    def residuals(self, z: Tensors) -> Tensor:
        """None."""
        return self.penalty(z)[..., None][..., :0]


class Leap(NamedTuple):
    """Other variables beside those that are, the first of (targets, candidates, ...), and what the space has against each."""

    candidates: Tensors
    cost: Tensor


@runtime_checkable
class Continuing(Protocol):
    """Variables that can start from where a search over others ended."""

    def continued(self, z: Tensors, before: Variables) -> Tensors:
        """The variables for the same examples as those of another space, both (targets, seeds, ...)."""
        ...


@runtime_checkable
class Leaping(Protocol):
    """Variables that are not only moved by small steps."""

    def leaps(self, z: Tensors, iteration: int, streams: Sequence[torch.Generator]) -> Iterator[Leap]:
        """What else is tried after an iteration, one thing after the other: the choice is written into z."""
        ...


@dataclass(frozen=True, kw_only=True)
class Parametrisation(Checked, ABC):
    """Settings of what is searched."""

    trained: ClassVar[bool] = False
    """Whether it learns from public examples first."""
    generative: ClassVar[bool] = False
    """Whether all that it holds looks like an example, so that what is found needs a control."""

    @property
    def weighs(self) -> bool:
        """Whether its variables have a penalty of their own."""
        return self.trained or self.generative

    def learn(self, public: Public, task: Task) -> Tensors:
        """What it learns from public examples; needs `trained`."""
        return {}

    def over(
        self, targets: "Sequence[tuple[Observation, ...]]", task: Task, classes: Tensor | None, learned: Tensors
    ) -> Variables:
        """The variables for some targets, each the observations of its rounds; by default the task is all that counts."""
        return self.bind(task, classes, learned)

    @abstractmethod
    def bind(self, task: Task, classes: Tensor | None = None, learned: Tensors | None = None) -> Variables:
        """The variables for a task, given the classes (targets, examples) if they are known, and what was learned."""
