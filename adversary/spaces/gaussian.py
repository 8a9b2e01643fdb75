"""Examples as draws from a Gaussian that was learned from public examples: a prior that says what noise cannot."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import AttackError, Public
from adversary.spaces.base import Parametrisation, Variables
from fl_app.core.local import Tensors
from fl_app.core.observation import Task

SHRINKAGE = 0.1
"""How far a class's own spread is pulled towards that of all classes (ours)."""
LEAST = 0.01
"""What a pixel may move at least by itself: one that is always black in public examples need not be so in others (ours)."""


@dataclass(frozen=True, kw_only=True)
class ClassGaussian(Parametrisation):
    """x = mean + basis z + rest r with z, r in N(0, I), by class: the search is for the most likely image, not the best match.

    Mean and spread of each class are those of public examples. The basis has the leading principal components; what they leave
    out of each pixel's spread is its `rest`, so that no image is out of reach. Where labels are searched for, one Gaussian
    stands for all classes. Needs an objective that is a log-likelihood.
    """

    trained: ClassVar[bool] = True
    components: Annotated[int, Field(ge=1, le=4096)] = 200

    def learn(self, public: Public, task: Task) -> Tensors:
        """mean, rest (classes + 1, pixels) and basis (classes + 1, pixels, components); the last is of all classes."""
        x = public.x.flatten(1)
        everybody = _law(x, self.components)
        laws = []
        for label in range(task.num_classes):
            own = x[public.y == label]
            laws.append(_law(own, self.components, everybody) if len(own) > 15 else everybody)
        laws.append(everybody)
        return {name: torch.stack([getattr(law, name) for law in laws]) for name in _Law._fields}

    def bind(self, task: Task, classes: Tensor | None = None, learned: Tensors | None = None) -> Variables:
        """The Gaussian of each example's class."""
        if not learned:
            raise AttackError("the space class_gaussian learns from public examples first, and there are none here")
        return _Gaussian(task, classes, _Law(**learned))


class _Law(NamedTuple):
    """Mean (..., pixels), basis (..., pixels, components) and the standard deviation of what is left (..., pixels)."""

    mean: Tensor
    basis: Tensor
    rest: Tensor


class _Gaussian:
    def __init__(self, task: Task, classes: Tensor | None, law: _Law) -> None:
        self.space = task.space
        self.law = _Law(*(part[-1] if classes is None else part[classes][:, None] for part in law))

    def draw(self, seeds: int, examples: int, stream: torch.Generator) -> Tensors:
        """From the mean, but for a little noise that tells several seeds apart."""
        pixels, components = self.law.basis.shape[-2:]
        z = 0.1 * torch.randn((seeds, examples, components), generator=stream)
        return {"z": z, "rest": torch.zeros(seeds, examples, pixels)}

    def inputs(self, z: Tensors) -> Tensor:
        mean, basis, rest = self.law
        x = mean + (basis @ z["z"][..., None])[..., 0] + (rest + LEAST) * z["rest"]
        return x.reshape(*x.shape[:3], *self.space.shape)

    def project(self, z: Tensors) -> Tensors:
        return z

    def answer(self, z: Tensors) -> Tensor:
        return self.inputs(z)

    def penalty(self, z: Tensors) -> Tensor:
        """-log N(z; 0, I) N(r; 0, I), (targets, seeds)."""
        return (z["z"].square().flatten(2).sum(-1) + z["rest"].square().flatten(2).sum(-1)) / 2

    def residuals(self, z: Tensors) -> Tensor:
        """What its squares are, (targets, seeds, residuals)."""
        return torch.cat([z["z"].flatten(2), z["rest"].flatten(2)], dim=2) / 2**0.5


def _law(x: Tensor, components: int, everybody: _Law | None = None) -> _Law:
    """The law of examples (n, pixels); few of them lean on everybody's spread."""
    mean = x.mean(0)
    centred = (x - mean) / max(1, len(x) - 1) ** 0.5
    if everybody is not None:
        centred = torch.cat([(1 - SHRINKAGE) ** 0.5 * centred, SHRINKAGE**0.5 * everybody.basis.T])
    # The smaller of the two matrices of products has the same leading eigenvalues; an SVD takes minutes where it takes seconds.
    if len(centred) < centred.shape[1]:
        vectors = torch.linalg.eigh(centred @ centred.T).eigenvectors
        basis = centred.T @ vectors[:, -components:].flip(1)
    else:
        values, vectors = torch.linalg.eigh(centred.T @ centred)
        basis = (vectors * values.clamp_min(0).sqrt())[:, -components:].flip(1)
    missing = components - basis.shape[1]
    basis = torch.nn.functional.pad(basis, (0, missing)) if missing > 0 else basis
    rest = (centred.square().sum(0) - basis.square().sum(1)).clamp_min(0).sqrt()
    return _Law(mean, basis, rest)
