"""The interface of a parametrisation: the free variables z of a search, and the examples that they stand for."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from adversary.base import Public
from fl_app.core.local import Tensors
from fl_app.core.observation import Task
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


@dataclass(frozen=True, kw_only=True)
class Parametrisation(Checked, ABC):
    """Settings of what is searched."""

    trained: ClassVar[bool] = False
    """Whether it learns from public examples first."""

    def learn(self, public: Public, task: Task) -> Tensors:
        """What it learns from public examples; needs `trained`."""
        return {}

    @abstractmethod
    def bind(self, task: Task, classes: Tensor | None = None, learned: Tensors | None = None) -> Variables:
        """The variables for a task, given the classes (targets, examples) if they are known, and what was learned."""
