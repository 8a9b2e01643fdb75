"""Other objectives on some of what was sent: the entries that are not zero, the largest, those of some layers."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, Self

from pydantic import Field
from torch import Tensor

from adversary.base import AttackError
from adversary.labels import last_weight
from adversary.objectives import Objective, registered
from fl_app.core.local import Tensors
from fl_app.core.observation import Task
from fl_app.core.spec import Named


@dataclass(frozen=True, kw_only=True)
class OnSome(Objective):
    """Another objective on some of the entries; subclasses say on which."""

    objective: Annotated[Objective, Named("objective", registered)]

    @property
    def stages(self) -> int:  # type: ignore[override]
        """Those of the other objective."""
        return self.objective.stages

    @property
    def squares(self) -> bool:
        """As the other objective."""
        return self.objective.squares

    @abstractmethod
    def chosen(self, value: Tensor) -> Tensor:
        """Which entries of a tensor that was sent count, bool."""

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The distance on the entries that count."""
        return self.objective(*self._some(dummy, seen), progress)

    def residuals(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """Those of the other objective there."""
        return self.objective.residuals(*self._some(dummy, seen), progress)

    def fitted(self, update: Tensors, task: Task) -> Self:
        """Fit the other objective."""
        return replace(self, objective=self.objective.fitted(update, task))

    def kept(self, update: Tensors) -> list[str]:
        """What the other objective looks at."""
        return self.objective.kept(update)

    def _some(self, dummy: Tensors, seen: Tensors) -> tuple[Tensors, Tensors]:
        chosen = {name: self.chosen(value) for name, value in seen.items()}
        return {name: dummy[name] * chosen[name] for name in seen}, {name: seen[name] * chosen[name] for name in seen}


@dataclass(frozen=True, kw_only=True)
class Masked(OnSome):
    """Another objective on the entries that are not zero in what was sent: those that a sparse defense kept."""

    def chosen(self, value: Tensor) -> Tensor:
        """Those that are not zero."""
        return value != 0


@dataclass(frozen=True, kw_only=True)
class Partial(OnSome):
    """Another objective on the largest entries of each tensor that was sent (Fan et al. 2025, FedLeak, partial matching)."""

    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Of the entries of a tensor."""

    def chosen(self, value: Tensor) -> Tensor:
        """The largest by size."""
        size = value.abs().flatten()
        least = size.topk(max(1, round(self.share * len(size))), sorted=True).values[-1]
        return value.abs() >= least


@dataclass(frozen=True, kw_only=True)
class Ignoring(Objective):
    """Another objective without the parameters whose names contain one of some words; 'last' stands for the last layer."""

    objective: Annotated[Objective, Named("objective", registered)]
    layers: tuple[str, ...]

    @property
    def stages(self) -> int:  # type: ignore[override]
        """Those of the other objective."""
        return self.objective.stages

    @property
    def squares(self) -> bool:
        """As the other objective."""
        return self.objective.squares

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The distance of what is left."""
        return self.objective(dummy, seen, progress)

    def residuals(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """Those of the other objective."""
        return self.objective.residuals(dummy, seen, progress)

    def fitted(self, update: Tensors, task: Task) -> Self:
        """Replace 'last' by the layer's name; AttackError if nothing is left."""
        names = [last_weight(update, task.num_classes).removesuffix("weight") if one == "last" else one for one in self.layers]
        fitted = type(self)(objective=self.objective.fitted(update, task), layers=tuple(names))
        if not fitted.kept(update):
            raise AttackError(f"ignoring {list(self.layers)} leaves nothing to match; the parameters are {list(update)}")
        return fitted

    def kept(self, update: Tensors) -> list[str]:
        """The names that contain none of the words."""
        return [name for name in self.objective.kept(update) if not any(word in name for word in self.layers)]
