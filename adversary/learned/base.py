"""What attacks have in common that learn a decoder from features of an update to images."""

from abc import ABC
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import LEAST_PUBLIC, Attack, AttackError, Public
from adversary.learned.decoder import Known, Training
from adversary.search.optimizers import Count, Rate
from fl_app.core.local import LocalRule
from fl_app.core.observation import Task
from fl_app.core.space import Images


@dataclass(frozen=True, kw_only=True)
class Decoding(Attack, ABC):
    """Settings of the network, and of what it learns from."""

    trained: ClassVar[bool] = True
    hidden: Annotated[int, Field(ge=1, le=2**14)] = 1024  # LTI: 3,000; ours for two cores
    """Width of both hidden layers of the network."""
    epochs: Annotated[int, Field(ge=0, le=10_000)] = 6  # LTI: 200; here it stops once it no longer helps
    """The most rounds of learning over all public examples; 0: lines alone."""
    lr: Rate = 3e-4  # LTI: 1e-4 for many more epochs
    batch: Count = 256
    """Updates in a step of learning."""
    flips: bool = True
    """Whether mirrored images are learned from, too (ours): not for digits."""
    public: Annotated[int, Field(ge=LEAST_PUBLIC, le=10**6)] = 10_000
    """The most public examples that it learns from."""

    @property
    def public_wanted(self) -> int:  # type: ignore[override]
        """As many as it is set to."""
        return self.public

    @property
    def training(self) -> Training:
        """How the network is trained."""
        return Training(hidden=self.hidden, epochs=self.epochs, lr=self.lr, batch=self.batch)

    def shown(self, public: Public) -> Public:
        """What it learns from: with mirror images behind the others, if they are of use."""
        if not self.flips:
            return public
        return Public(torch.cat([public.x, public.x.flip(-1)]), torch.cat([public.y, public.y]))

    def known(self, features: Tensor, shown: Public, public: Public, y: Tensor) -> Known:
        """Features of what is shown, of which each public example has one version or two."""
        return Known(features, shown.x.flatten(1), y, torch.arange(len(y), device=y.device) % len(public.y))

    def of_images(self, task: Task) -> None:
        """Refuse rows of a table."""
        if not isinstance(task.space, Images):
            raise AttackError(f"{type(self).__name__.lower()} rebuilds images: for rows of a table use ridge")

    def cost(self, examples: int, rule: LocalRule) -> float:
        """As much as a few iterations per target: nearly all of its work is done before."""
        return 100.0 * examples * rule.steps
