"""Examples as draws from a Gaussian that was learned from public examples: a prior that says what noise cannot."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import AttackError, Public
from adversary.spaces.base import Parametrisation, Variables
from fl_app.core.local import Tensors
from fl_app.core.observation import Task

SHRINKAGE = 0.1
"""How far a class's own spread is pulled towards that of all classes (ours)."""


@dataclass(frozen=True, kw_only=True)
class ClassGaussian(Parametrisation):
    """x = mean + basis z with z in N(0, I), by class: the search is for the most likely image, not for the best match.

    Mean and spread of each class are those of public examples; the basis has the leading principal components. Where labels
    are searched for, one Gaussian stands for all classes. Needs an objective that is a log-likelihood.
    """

    trained: ClassVar[bool] = True
    components: Annotated[int, Field(ge=1, le=4096)] = 60

    def learn(self, public: Public, task: Task) -> Tensors:
        """Mean (classes + 1, pixels) and basis (classes + 1, pixels, components); the last is of all classes."""
        x = public.x.flatten(1).double()
        everybody = _law(x, self.components)
        laws = []
        for label in range(task.num_classes):
            own = x[public.y == label]
            laws.append(_law(own, self.components, everybody) if len(own) > self.components // 4 else everybody)
        means, bases = zip(*laws, everybody, strict=True)
        return {"mean": torch.stack(means).float(), "basis": torch.stack(bases).float()}

    def bind(self, task: Task, classes: Tensor | None = None, learned: Tensors | None = None) -> Variables:
        """The Gaussian of each example's class."""
        if not learned:
            raise AttackError("the space class_gaussian learns from public examples first, and there are none here")
        return _Gaussian(task, classes, learned)


class _Gaussian:
    def __init__(self, task: Task, classes: Tensor | None, learned: Tensors) -> None:
        self.space, self.mean, self.basis = task.space, learned["mean"], learned["basis"]
        self.classes = classes

    def draw(self, seeds: int, examples: int, stream: torch.Generator) -> Tensors:
        """From the mean, but for a little noise that tells several seeds apart."""
        return {"z": 0.1 * torch.randn((seeds, examples, self.basis.shape[2]), generator=stream)}

    def inputs(self, z: Tensors) -> Tensor:
        which = torch.full(z["z"].shape[:1] + z["z"].shape[2:3], len(self.mean) - 1) if self.classes is None else self.classes
        mean, basis = self.mean[which][:, None], self.basis[which][:, None]
        x = mean + torch.einsum("tsepk,tsek->tsep", basis.expand(-1, z["z"].shape[1], -1, -1, -1), z["z"])
        return x.reshape(*x.shape[:3], *self.space.shape)

    def project(self, z: Tensors) -> Tensors:
        return dict(z)

    def answer(self, z: Tensors) -> Tensor:
        return self.inputs(z)

    def penalty(self, z: Tensors) -> Tensor:
        """-log N(z; 0, I), (targets, seeds)."""
        return z["z"].square().flatten(2).sum(-1) / 2


def _law(x: Tensor, components: int, everybody: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """(mean (pixels,), basis (pixels, components)) of examples (n, pixels); few of them lean on everybody's spread."""
    mean = x.mean(0)
    centred = (x - mean) / max(1, len(x) - 1) ** 0.5
    if everybody is not None:
        centred = torch.cat([(1 - SHRINKAGE) ** 0.5 * centred, SHRINKAGE**0.5 * everybody[1].T])
    _, sizes, directions = torch.linalg.svd(centred, full_matrices=False)
    basis = directions[:components].T * sizes[:components]
    missing = components - basis.shape[1]
    return mean, torch.nn.functional.pad(basis, (0, missing)) if missing > 0 else basis
