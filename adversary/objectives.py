"""How far the update of a reconstruction is from the observed one: pieces of `matching`, one class each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import AttackError
from fl_app.core.local import Tensors
from fl_app.core.observation import Task
from fl_app.core.spec import Checked, Registry

TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class Objective(Checked, ABC):
    """A distance of two updates, by parameter name; it runs under vmap, for one reconstruction at a time."""

    stages: ClassVar[int] = 1
    """In how many steps it changes with progress; losses of different stages are not compared."""

    @abstractmethod
    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The distance of the reconstruction's update from the observed one, a number; progress in [0, 1) by stages."""

    def over_rounds(self, dummies: Sequence[Tensors], seen: Sequence[Tensors], progress: float) -> Tensor:
        """The distance over the rounds of a client on the same examples, in order: the mean, unless rounds depend on others."""
        return torch.stack([self(*pair, progress) for pair in zip(dummies, seen, strict=True)]).mean()

    @property
    def squares(self) -> bool:
        """Whether it has residuals, so that Gauss-Newton can follow it."""
        return type(self).residuals is not Objective.residuals

    def residuals(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The distance as squares, exactly or in the neighbourhood, for Gauss-Newton: (residuals,)."""
        raise AttackError(f"the objective {type(self).__name__} is no sum of squares: use lbfgs or adam, not gauss_newton")

    def residuals_over_rounds(self, dummies: Sequence[Tensors], seen: Sequence[Tensors], progress: float) -> Tensor:
        """The same over the rounds of a client on the same examples: (residuals,)."""
        share = len(seen) ** -0.5
        return torch.cat([share * self.residuals(*pair, progress) for pair in zip(dummies, seen, strict=True)])

    def fitted(self, update: Tensors, task: Task) -> Self:
        """The objective for updates with these names and shapes."""
        return self

    def kept(self, update: Tensors) -> list[str]:
        """The names of the parameters that it looks at."""
        return list(update)


@dataclass(frozen=True, kw_only=True)
class L2(Objective):
    """Sum of squared differences over all entries (DLG, iDLG, GradInversion)."""

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The squared distance."""
        return squared_l2(dummy, seen)

    def residuals(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The differences."""
        return torch.cat([(dummy[name] - value).flatten() for name, value in seen.items()])


@dataclass(frozen=True, kw_only=True)
class Relative(Objective):
    """Squared distance over the squared size, the mean over tensors: the first layers, which know the pixels, count as much."""

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The relative squared distance."""
        return self.residuals(dummy, seen, progress).square().sum()

    def residuals(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The differences, on the scale of each tensor."""
        share = len(seen) ** -0.5
        parts = [share * (dummy[name] - value) / (value.square().sum() + TINY).sqrt() for name, value in seen.items()]
        return torch.cat([part.flatten() for part in parts])


@dataclass(frozen=True, kw_only=True)
class Cosine(Objective):
    """1 - cosine of the two updates as one vector each (Inverting Gradients): blind to their scale."""

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """One minus the cosine."""
        return cosine(dummy, seen)

    def residuals(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The difference of the two directions: its square is twice the loss."""
        return (direction(dummy, seen) - direction(seen, seen)) / 2**0.5


@dataclass(frozen=True, kw_only=True)
class Robust(Objective):
    """1 - cosine, after down-weighting the entries that do not fit: decoys and outliers among what was sent.

    One round of iteratively reweighted least squares at each call, with Cauchy weights 1 / (1 + (r / s)^2): r is the
    residual after the best common scale, s is a width times its mean size in the tensor. The weights are constants to
    the gradient. Which entries are decoys shows only once the reconstruction is roughly right: so all count at first
    (the plain cosine), then fewer and fewer.
    """

    stages: ClassVar[int] = 4
    WIDTHS: ClassVar[tuple[float, ...]] = (torch.inf, 4.0, 2.0, 1.0)

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """One minus the cosine of the entries that fit."""
        width = self.WIDTHS[min(round(progress * self.stages), self.stages - 1)]
        return robust(dummy, seen, width)


@dataclass(frozen=True, kw_only=True)
class WrongSigns(Objective):
    """The share of entries with another sign than what was sent, by the size of what was sent: for Adam's local steps.

    Adam's first step is the sign of the gradient, so the sizes of its entries are lost. A smooth surrogate of the sign rewards
    large entries and ends at other images; here the loss has the true signs, and its gradient is passed straight through them,
    which only a first-order optimiser can follow.
    """

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The share of wrong signs."""
        wrong, total = [], []
        for name, value in seen.items():
            weight = value.abs() / (value.abs().max() + TINY)
            smooth = dummy[name] / (dummy[name].abs().mean() + TINY).detach()
            sign = smooth + (smooth.sign() - smooth).detach()
            wrong.append((weight * (sign - value.sign()).square()).sum() / 4)
            total.append(weight.sum())
        return torch.stack(wrong).sum() / (torch.stack(total).sum() + TINY)


@dataclass(frozen=True, kw_only=True)
class Shell(Objective):
    """(|dummy - seen| - eps)²: "solve |g* - g| = const", where Refiner's projection was active (its Appendices J and M)."""

    eps: Annotated[float, Field(gt=0)]

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The squared distance from the shell."""
        return ((squared_l2(dummy, seen) + TINY).sqrt() - self.eps).square()


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "cosine": Cosine,
    "l2": L2,
    "relative": Relative,
    "robust": Robust,
    "shell": Shell,
    "wrong_signs": WrongSigns,
}


def registered() -> Registry[Objective]:
    """All objectives, those of text and of informed attackers included."""
    from adversary.adapted import Adapted
    from adversary.entries import Ignoring, Masked, Partial
    from adversary.informed import pieces
    from adversary.text import objectives as text

    on_some: Registry[Objective] = {"adapted": Adapted, "ignoring": Ignoring, "masked": Masked, "partial": Partial}
    return {**OBJECTIVES, **on_some, **text.OBJECTIVES, **pieces.OBJECTIVES}


def squared_l2(dummy: Tensors, seen: Tensors) -> Tensor:
    """Sum of squared differences over all entries."""
    return torch.stack([(dummy[name] - seen[name]).square().sum() for name in seen]).sum()


def cosine(dummy: Tensors, seen: Tensors) -> Tensor:
    """1 - cosine of the two updates as one vector each."""
    inner = torch.stack([(dummy[name] * seen[name]).sum() for name in seen]).sum()
    ours = torch.stack([dummy[name].square().sum() for name in seen]).sum()
    theirs = torch.stack([seen[name].square().sum() for name in seen]).sum()
    return 1 - inner / (ours * theirs + TINY).sqrt()


def direction(update: Tensors, like: Tensors) -> Tensor:
    """The entries of an update as one vector of length one, in the order of another."""
    flat = torch.cat([update[name].flatten() for name in like])
    return flat / (flat.square().sum() + TINY).sqrt()


def robust(dummy: Tensors, seen: Tensors, width: float = 1.0) -> Tensor:
    """1 - cosine with Cauchy weights of some width; an infinite width is the plain cosine."""
    inner = torch.stack([(dummy[name] * seen[name]).sum() for name in seen]).sum()
    ours = torch.stack([dummy[name].square().sum() for name in seen]).sum()
    scale = inner / (ours + TINY)
    weighted: tuple[Tensors, Tensors] = {}, {}
    for name, value in seen.items():
        residual = (value - scale * dummy[name]).detach()
        root = (1 + (residual / (width * residual.abs().mean() + TINY)).square()).rsqrt()
        weighted[0][name], weighted[1][name] = root * dummy[name], root * value
    return cosine(*weighted)
