"""Optimisers of many independent reconstructions, pieces of `matching`: settings, and what takes the steps."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol

import torch
from pydantic import Field
from torch import Tensor

from adversary.search.cma_es import CMASteps
from adversary.search.gauss_newton import BatchedGaussNewton
from adversary.search.lbfgs import HISTORY_LENGTH, BatchedLBFGS
from adversary.search.variables import joined, parted
from fl_app.core.local import Tensors
from fl_app.core.spec import Checked

Count = Annotated[int, Field(ge=1, le=10**9)]
Rate = Annotated[float, Field(gt=0)]
Residuals = Callable[[Tensors], Tensor]
"""Variables, each (targets, seeds, ...) -> what is left to explain, (targets, seeds, residuals); squared, the loss."""


class Steps(Protocol):
    """What moves the variables, each (targets, seeds, ...); single reconstructions can be started anew."""

    @property
    def settled(self) -> bool:
        """Whether no reconstruction moves any more."""
        ...

    def step(self, variables: Tensors, gradients: Tensors, loss: Tensor) -> Tensors:
        """The moved variables, given their gradients and the losses (targets, seeds)."""
        ...

    def reset(self, chosen: Tensor) -> None:
        """Forget some reconstructions, bool (targets, seeds)."""
        ...

    def state(self) -> Tensors:
        """All that the next step depends on, by name."""
        ...

    def restore(self, state: Tensors) -> None:
        """Go on from a state; an empty one is that before the first step."""
        ...


@dataclass(frozen=True, kw_only=True)
class Optimizer(Checked, ABC):
    """How long to search, and with which steps."""

    iterations: Count = 1000
    lr: Rate = 0.1
    restarts: Count = 1
    """Attempts per target; only targets whose loss is not below `solved` are tried again."""
    solved: Annotated[float, Field(ge=0)] = 0.0
    """The loss, without priors, below which a target counts as found; 0: never."""
    needs_gradients: ClassVar[bool] = True
    """Whether its steps follow gradients; without, only losses are computed."""

    @abstractmethod
    def start(self, residuals: Residuals) -> Steps:
        """What takes the steps of one attempt; second-order methods look at the residuals."""

    @property
    def work(self) -> float:
        """About how many gradients of a reconstruction one attempt takes."""
        return float(self.iterations)

    @property
    def remembers(self) -> int:
        """How many numbers it keeps for each variable, from step to step."""
        return 2

    @property
    def ahead(self) -> float:
        """The share of the slope that it wants from further up."""
        return 0.0

    @property
    def survives(self) -> bool:
        """Whether its steps recover by themselves from a loss that is not finite."""
        return False


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015); signed and with step decay it is the optimiser of Inverting Gradients."""

    signed: bool = False
    """Descend along the sign of the gradient."""
    decay: bool = False
    """Divide the rate by 10 after 3/8, 5/8 and 7/8 of the iterations."""
    fall: Annotated[float, Field(gt=0, le=1)] = 1.0
    """What the rate is multiplied by after each fortieth of the iterations (LAMP)."""
    further: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the slope that is taken a step of length one further up, which prefers flat places; twice the work.

    FedLeak's gradient regularisation (Fan et al. 2025).
    """

    @property
    def ahead(self) -> float:
        """As it is set to."""
        return self.further

    @property
    def work(self) -> float:
        """Each slope further up is one more."""
        return super().work * (1 + bool(self.further))

    def start(self, residuals: Residuals) -> Steps:
        """Adam's moments."""
        return AdamSteps(self)


@dataclass(frozen=True, kw_only=True)
class LBFGS(Optimizer):
    """L-BFGS with a line search on each reconstruction by itself."""

    lr: Rate = 1.0

    def start(self, residuals: Residuals) -> Steps:
        """The history of L-BFGS."""
        return LBFGSSteps(self.lr)

    @property
    def remembers(self) -> int:
        """Its history of steps and changes."""
        return 2 * HISTORY_LENGTH

    @property
    def survives(self) -> bool:
        """Its line search takes back a step that led to a loss that is not finite."""
        return True


@dataclass(frozen=True, kw_only=True)
class GaussNewton(Optimizer):
    """Gauss-Newton with Levenberg-Marquardt damping; for objectives and priors that are sums of squares."""

    iterations: Count = 30
    products: Count = 100
    """Products with the curvature in an iteration, at the most; each costs about two gradients."""

    def start(self, residuals: Residuals) -> Steps:
        """The points that were accepted last."""
        return GaussNewtonSteps(self, residuals)

    @property
    def work(self) -> float:
        """Products cost more than gradients."""
        return float(self.iterations * self.products * 2)

    @property
    def survives(self) -> bool:
        """A step to a loss that is not finite is taken back."""
        return True


@dataclass(frozen=True, kw_only=True)
class CMA(Optimizer):
    """CMA-ES (Hansen 2016, by the library `cma`), one strategy per target: the seeds of the search are its population."""

    needs_gradients = False
    iterations: Count = 300
    """Generations."""
    lr: Rate = 0.5
    """Standard deviation of the first generation (ours), around the best of the starts."""

    def start(self, residuals: Residuals) -> Steps:
        """A strategy per target, made at the first step."""
        return CMASteps(self.lr)

    @property
    def survives(self) -> bool:
        """A candidate whose loss is not finite is the worst one."""
        return True


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": Adam,
    "cma": CMA,
    "gauss_newton": GaussNewton,
    "lbfgs": LBFGS,
}


class AdamSteps:
    """Adam with a clock for each reconstruction."""

    settled = False

    def __init__(self, settings: Adam) -> None:
        self.settings, self.count = settings, 0
        self.milestones = [settings.iterations * part // 8 for part in (3, 5, 7)] if settings.decay else []
        self._first: Tensors = {}
        self._second: Tensors = {}
        self._age = torch.empty(0)

    def step(self, variables: Tensors, gradients: Tensors, loss: Tensor) -> Tensors:
        """One Adam step."""
        if not self._first:
            self._first = {name: torch.zeros_like(value) for name, value in variables.items()}
            self._second = {name: torch.zeros_like(value) for name, value in variables.items()}
            self._age = torch.zeros_like(loss)
        rate = self.settings.lr * 0.1 ** sum(self.count >= at for at in self.milestones)
        rate *= self.settings.fall ** (40 * self.count // self.settings.iterations)
        self.count += 1
        self._age = self._age + 1
        moved = {}
        for name, variable in variables.items():
            gradient = gradients[name].sign() if self.settings.signed else gradients[name]
            first, second = self._first[name], self._second[name]
            first.lerp_(gradient, 0.1)
            second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            age = self._age.view(*self._age.shape, *[1] * (variable.ndim - 2))
            size = (second / (1 - 0.999**age)).sqrt_().add_(1e-8)
            moved[name] = variable - rate * (first / (1 - 0.9**age)) / size
        return moved

    def state(self) -> Tensors:
        """The moments and the clocks."""
        moments = {"first": self._first, "second": self._second}
        named = {f"{which}/{name}": value for which, each in moments.items() for name, value in each.items()}
        return {"count": torch.tensor(self.count), "age": self._age, **named}

    def restore(self, state: Tensors) -> None:
        """Go on from such moments."""
        if state:
            self.count, self._age = int(state["count"]), state["age"]
        for which, moments in (("first/", self._first), ("second/", self._second)):
            moments |= {name.removeprefix(which): value for name, value in state.items() if name.startswith(which)}

    def reset(self, chosen: Tensor) -> None:
        """Forget the moments of some reconstructions."""
        for moment in (*self._first.values(), *self._second.values()):
            moment[chosen] = 0
        self._age[chosen] = 0


class Joined:
    """Steps on all variables of a reconstruction as one vector, by an inner method for many such vectors."""

    def __init__(self, inner: BatchedLBFGS | BatchedGaussNewton) -> None:
        self._inner = inner

    def state(self) -> Tensors:
        """That of the inner method."""
        return self._inner.state()

    def restore(self, state: Tensors) -> None:
        """Go on from such a state."""
        self._inner.restore(state)

    def reset(self, chosen: Tensor) -> None:
        """Forget what is known of some reconstructions."""
        self._inner.reset(chosen.flatten())


class LBFGSSteps(Joined):
    """L-BFGS on joined variables."""

    _inner: BatchedLBFGS
    settled = False

    def __init__(self, lr: float) -> None:
        super().__init__(BatchedLBFGS(lr))

    def step(self, variables: Tensors, gradients: Tensors, loss: Tensor) -> Tensors:
        """One L-BFGS step."""
        gradient = joined({name: gradients[name] for name in variables})
        return parted(self._inner.step(joined(variables), loss.flatten(), gradient), variables)


class GaussNewtonSteps(Joined):
    """Gauss-Newton on joined variables."""

    _inner: BatchedGaussNewton

    def __init__(self, settings: GaussNewton, residuals: Residuals) -> None:
        self._like: Tensors = {}
        inner = BatchedGaussNewton(lambda point: residuals(parted(point, self._like)).flatten(0, 1), settings.products)
        super().__init__(inner)

    @property
    def settled(self) -> bool:
        """Whether no reconstruction moves any more."""
        return self._inner.settled

    def step(self, variables: Tensors, gradients: Tensors, loss: Tensor) -> Tensors:
        """One Gauss-Newton step."""
        self._like = variables
        return parted(self._inner.step(joined(variables), loss.flatten()), variables)
