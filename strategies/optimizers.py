"""Server optimisers: how the mean update changes the global weights."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from fl_app.core import spec
from fl_app.core.spec import Checked

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rounds = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(max_length=1000)]
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer(Checked):
    """A learning rate that is multiplied by `drop` at each round of `drop_at`."""

    lr: Rate = 0.1
    drop_at: Rounds = ()
    drop: Rate = 0.1

    def lr_at(self, server_round: int) -> float:
        """The rate of a round (from 1)."""
        return self.lr * self.drop ** sum(server_round >= at for at in self.drop_at)

    def make(self, weights: nn.Parameter) -> torch.optim.Optimizer:
        """The torch optimiser that does the step."""
        raise TypeError("use a concrete optimiser such as sgd or adam")


@dataclass(frozen=True, kw_only=True)
class ServerSGD(ServerOptimizer):
    """SGD with momentum and weight decay."""

    momentum: Share = 0.0
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    def make(self, weights: nn.Parameter) -> torch.optim.Optimizer:
        """torch.optim.SGD."""
        return torch.optim.SGD([weights], lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)


@dataclass(frozen=True, kw_only=True)
class ServerAdam(ServerOptimizer):
    """Adam."""

    lr: Rate = 1e-3
    beta1: Share = 0.9
    beta2: Share = 0.999

    def make(self, weights: nn.Parameter) -> torch.optim.Optimizer:
        """torch.optim.Adam."""
        return torch.optim.Adam([weights], lr=self.lr, betas=(self.beta1, self.beta2))


OPTIMIZERS: dict[str, type[ServerOptimizer]] = {"adam": ServerAdam, "sgd": ServerSGD}


def build(text: str) -> ServerOptimizer:
    """`"sgd(lr=0.1, momentum=0.9, drop_at=[500])"` -> its settings."""
    return spec.build_one("optimizer", text, OPTIMIZERS)
