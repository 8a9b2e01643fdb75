"""What examples look like: penalties on reconstructions, pieces of `matching`, one class each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.func import vmap

from adversary.base import AttackError
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Space
from fl_app.core.spec import Checked, Registry
from fl_app.core.table import Rows
from fl_app.models.statistics import batchnorm_statistics

Weight = Annotated[float, Field(ge=0)]
Penalty = Callable[[Tensor], Tensor]
"""Reconstructions x (targets, seeds, examples, *shape) -> (targets, seeds)."""


FLAT = 0.01
"""Differences of neighbouring pixels below this count as flat to Gauss-Newton, so that its weights stay bounded (ours)."""


class Scene(NamedTuple):
    """What a prior is held against: the observations of each target (one per round), and the public facts."""

    targets: list[tuple[Observation, ...]]
    task: Task
    classes: Tensor | None = None
    """(targets, examples), unless labels are searched for."""


@dataclass(frozen=True, kw_only=True)
class Prior(Checked):
    """A weighted penalty; subclasses write `penalty`, or `bind` if they need more than the reconstruction."""

    of_images: ClassVar[bool] = False
    """Whether it says nothing of rows of a table, as they have no neighbours; it is left out there."""
    weight: Weight

    def says(self, space: Space) -> bool:
        """Whether it counts for examples of a space."""
        return bool(self.weight) and not (self.of_images and isinstance(space, Rows))

    def penalty(self, x: Tensor) -> Tensor:
        """The penalty of x (targets, seeds, examples, *shape), without its weight: (targets, seeds)."""
        raise AttackError(f"the prior {type(self).__name__} has neither a `penalty` nor a `bind` of its own")

    def residuals(self, x: Tensor) -> Tensor:
        """The penalty as squares, at least in the neighbourhood, for Gauss-Newton: (targets, seeds, residuals)."""
        raise AttackError(f"the prior {type(self).__name__} is no sum of squares: use lbfgs or adam, not gauss_newton")

    def bind(self, scene: Scene) -> Penalty:
        """The weighted penalty on these targets; AttackError if what it needs was not granted."""
        return lambda x: self.weight * self.penalty(x)


@dataclass(frozen=True, kw_only=True)
class TotalVariation(Prior):
    """Mean absolute difference of neighbouring pixels, across and down."""

    of_images: ClassVar[bool] = True

    def penalty(self, x: Tensor) -> Tensor:
        """The total variation."""
        return total_variation(x)

    def residuals(self, x: Tensor) -> Tensor:
        """The differences over the roots of their sizes, which are constants to a step."""
        gaps = (x[..., 1:] - x[..., :-1]).flatten(2), (x[..., 1:, :] - x[..., :-1, :]).flatten(2)
        return torch.cat([gap / (gap.detach().abs() + FLAT).sqrt() / gap.shape[-1] ** 0.5 for gap in gaps], dim=-1)


@dataclass(frozen=True, kw_only=True)
class Colour(Prior):
    """Total variation of the differences between channels: colours change less than brightness does; 0 of one channel."""

    of_images: ClassVar[bool] = True

    def penalty(self, x: Tensor) -> Tensor:
        """The variation of colours."""
        return colour_variation(x)


@dataclass(frozen=True, kw_only=True)
class Norm(Prior):
    """Mean square of the pixels."""

    def penalty(self, x: Tensor) -> Tensor:
        """The mean square."""
        return x.square().flatten(2).mean(-1)

    def residuals(self, x: Tensor) -> Tensor:
        """The pixels."""
        return x.flatten(2) / math.sqrt(x[0, 0].numel())


@dataclass(frozen=True, kw_only=True)
class Box(Prior):
    """Mean squared distance of the pixels from [0, 1]: smooth, where clamping would break a second-order step."""

    def penalty(self, x: Tensor) -> Tensor:
        """The squared distance."""
        return self.residuals(x).square().sum(-1)

    def residuals(self, x: Tensor) -> Tensor:
        """The distances."""
        return (x - x.clamp(0, 1)).flatten(2) / math.sqrt(x[0, 0].numel())


@dataclass(frozen=True, kw_only=True)
class Group(Prior):
    """Mean squared distance to the mean over the seeds of a target (GradInversion, section 3.4, without registration)."""

    def penalty(self, x: Tensor) -> Tensor:
        """The squared distance."""
        return group_consistency(x)


@dataclass(frozen=True, kw_only=True)
class SameMean(Prior):
    """Squared difference of the mean images of epochs (Dimitrov et al. 2022, section 4): blind to the order within them."""

    epochs: Annotated[int, Field(ge=1, le=1000)]

    def penalty(self, x: Tensor) -> Tensor:
        """The mean over pairs of epochs and pixels."""
        means = x.reshape(*x.shape[:2], self.epochs, -1, *x.shape[3:]).mean(3).flatten(3)
        return 2 * (means - means.mean(2, keepdim=True)).square().sum(2).mean(-1) / max(1, self.epochs - 1)


@dataclass(frozen=True, kw_only=True)
class BatchNorm(Prior):
    """Distance of the BatchNorm statistics of a reconstruction from the granted ones (GradInversion, section 3.3)."""

    def bind(self, scene: Scene) -> Penalty:
        """The distance, at the weights of each round."""
        granted = [target[0].knowledge.statistics for target in scene.targets]
        if not granted[0]:
            raise AttackError("the prior batchnorm needs the BatchNorm statistics to be granted: add --grant statistics")
        stacked = {name: torch.stack([each[name] for each in granted]) for name in granted[0]}

        def penalty(x: Tensor) -> Tensor:
            seeds = x.shape[1]
            repeated = {name: value.repeat_interleave(seeds, 0) for name, value in stacked.items()}
            rounds = [_distances(scene, seen.params, x.flatten(0, 1), repeated) for seen in scene.targets[0]]
            return self.weight * torch.stack(rounds).mean(0).view(x.shape[:2])

        return penalty


def _distances(scene: Scene, params: Tensors, x: Tensor, granted: Tensors) -> Tensor:
    """Distances of the statistics of reconstructions x (n, examples, *shape) from the granted ones, (n,)."""

    def one(x: Tensor, granted: Tensors) -> Tensor:
        ours = batchnorm_statistics(scene.task.model, params, x)
        return torch.stack([(ours[name] - granted[name]).square().sum().add(1e-12).sqrt() for name in granted]).sum()

    return vmap(one, randomness="different")(x, granted)


PRIORS: dict[str, Callable[..., Prior]] = {
    "batchnorm": BatchNorm,
    "box": Box,
    "colour": Colour,
    "group": Group,
    "norm": Norm,
    "same_mean": SameMean,
    "tv": TotalVariation,
}


def registered() -> Registry[Prior]:
    """All priors, those of informed attackers included, which need the defenses' own networks."""
    from adversary.feature_targets import FeatureTargets
    from adversary.informed import pieces
    from adversary.text.priors import WordNorm

    return {**PRIORS, "features": FeatureTargets, "word_norm": WordNorm, **pieces.PRIORS}


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels of x (targets, seeds, examples, channels, height, width)."""
    across = (x[..., 1:] - x[..., :-1]).abs().flatten(2).mean(-1)
    down = (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(2).mean(-1)
    return across + down


def colour_variation(x: Tensor) -> Tensor:
    """Total variation of the differences between each two channels that follow each other, round and round; x as above."""
    return total_variation(x - x.roll(1, -3))


def group_consistency(x: Tensor) -> Tensor:
    """Mean squared distance to the mean over the seeds, x as above."""
    return (x - x.mean(1, keepdim=True)).square().flatten(2).mean(-1)
