"""Attacks over the weights of untrained networks, which draw smooth shapes with edges by themselves: presets of matching."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from adversary.objectives import Cosine
from adversary.presets import Preset
from adversary.search.matching import Matching
from adversary.search.optimizers import LBFGS, Adam, Count, Optimizer, Rate
from adversary.search.phases import Phase
from adversary.spaces.pixels import Pixels
from adversary.spaces.untrained import Channels, Untrained


@dataclass(frozen=True, kw_only=True)
class OverNetworks(Preset):
    """The cosine over the weights of untrained networks in place of pixels."""

    iterations: Count = 250
    seeds: Count = 1
    channels: Channels = 0
    tries: Count = 1
    """Untrained networks of which the search starts from the one that explains the update best, a forward pass each."""
    compiled: bool = False

    @abstractmethod
    def optimizer(self) -> Optimizer:
        """What moves the weights."""

    def matching(self) -> Matching:
        """Cosine over networks."""
        return Matching(
            objective=Cosine(),
            space=Untrained(channels=self.channels),
            labels=self.labels,
            optimizer=self.optimizer(),
            phases=self.phases(),
            seeds=self.seeds,
            at_once=16,  # each has a network of its own
            compiled=self.compiled,
        )

    def phases(self) -> tuple[Phase, ...]:
        """What is searched after the networks."""
        return ()


@dataclass(frozen=True, kw_only=True)
class CINet(OverNetworks):
    """CI-Net (Zhang et al. 2023): cosine, the weights of an untrained network in place of pixels, signed Adam 0.001.

    What such a network draws easily is smooth and has edges, which decides where an update has fewer equations than the
    batch has pixels. For smooth activations; the paper's are sigmoids.
    """

    lr: Rate = 1e-3
    iterations: Count = 2000

    def optimizer(self) -> Optimizer:
        """Adam on the sign of the gradient."""
        return Adam(iterations=self.iterations, lr=self.lr, signed=True, tries=self.tries)


@dataclass(frozen=True, kw_only=True)
class CINetLBFGS(OverNetworks):
    """Ours: several networks of CI-Net under L-BFGS, and a few steps on the pixels of their mean.

    Where other images explain an update as well, each network errs in a way of its own: the mean of four is a decibel nearer
    to the truth than one of them, and a few steps on pixels make it explain the update again.
    """

    # Chosen on 4 batches of 8 CIFAR-10 images (the first of the test part, network seeds 1 and 2), LeNet: docs/results.
    seeds: Count = 4
    refined: Annotated[int, Field(ge=0, le=10**9)] = 150
    """Steps on pixels in the end; 0: the best of the networks answers alone."""

    def optimizer(self) -> Optimizer:
        """L-BFGS."""
        return LBFGS(iterations=self.iterations, tries=self.tries)

    def phases(self) -> tuple[Phase, ...]:
        """Pixels."""
        steps = LBFGS(iterations=self.refined or 1)
        return (Phase(space=Pixels(boxed=False), optimizer=steps, pooled=True),) if self.refined else ()
