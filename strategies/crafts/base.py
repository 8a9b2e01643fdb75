"""A craft: how a malicious server changes what it sends, so that the answers give examples away."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fl_app.core.local import LocalRule, Tensors
from fl_app.core.spec import Checked

Choice = Literal["weights", "architecture"]


class CraftError(ValueError):
    """A craft that this run does not allow; the message says why."""


class Scene(NamedTuple):
    """What a malicious server knows before a round."""

    model: nn.Module
    """The model that clients train, with the craft's block in front if it has one."""
    public: Tensor
    """Examples of the same kind that no client holds, (n, *shape)."""
    rule: LocalRule
    seed: int


@dataclass(frozen=True, kw_only=True)
class Craft(Checked, ABC):
    """Settings of a craft."""

    readout: ClassVar[str] = ""
    """The attack on what it makes clients send, where no other is asked for; empty: the usual one."""
    chooses: ClassVar[tuple[Choice, ...]] = ("weights",)
    """What a client does not get as it was agreed on."""
    trains: ClassVar[bool] = True
    """Whether answers to crafted weights still train the honest ones; if not, the server throws them away."""

    def front(self, clients: int) -> str:
        """The spec of the block that it puts in front of the model; empty if it leaves the architecture alone."""
        return ""

    def check(self, rule: LocalRule) -> None:
        """Refuse a rule under which the craft cannot work, with a CraftError."""

    def fits(self, model: nn.Module) -> None:
        """Refuse a model that the craft cannot work with, with a CraftError."""

    @abstractmethod
    def weights(self, honest: Tensors, server_round: int, scene: Scene) -> Tensors:
        """The tensors that it changes for all clients in a round, by name."""

    def own(self, honest: Tensors, client: int, scene: Scene) -> Tensors:
        """The tensors that it changes for one client, by name."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Honest(Craft):
    """Sends the weights as they are, and the model as it was agreed on."""

    chooses: ClassVar[tuple[Choice, ...]] = ()

    def weights(self, honest: Tensors, server_round: int, scene: Scene) -> Tensors:
        """None is changed."""
        return {}


def brightness(x: Tensor) -> Tensor:
    """The mean of all pixels of each image, (n,)."""
    return x.flatten(1).mean(1)


def edges(values: Tensor, bins: int) -> Tensor:
    """The ends of bins that public values fill equally, (bins + 1,), each a little above the last."""
    shares = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    found = torch.quantile(values.double(), shares)
    # Public values may repeat: a bin needs a width to have a slope.
    least = (found[-1] - found[0]).clamp_min(1e-6) / (100 * bins)
    return found + least * torch.arange(bins + 1)


def alternating(number: int, size: float) -> Tensor:
    """size, -size, size, ...: what neighbours add to the image cancels, what they learn does not, (1, number)."""
    signs = torch.full((number,), size)
    signs[1::2] = -size
    return signs[None]
