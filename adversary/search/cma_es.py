"""CMA-ES for searches in few dimensions: no gradient of the match is taken, so that it works through any defense."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from adversary.base import AttackError
from adversary.search.variables import joined, parted
from fl_app.core.local import Tensors

MOST = 4096
"""Dimensions; the covariance of more takes seconds in each generation."""
AWFUL = 1e30
"""What a candidate counts whose loss is no number."""


class CMASteps:
    """A strategy per target; its draws are seeded by the target's own starts.

    What it would take to write down a strategy is private to the library, so its state is what it was told: losses from which
    the same draws are made again, which takes no gradients and next to no time.
    """

    settled = False

    def __init__(self, sigma: float) -> None:
        self.sigma = sigma
        self._strategies: list[Any] = []
        self._start = torch.empty(0)
        self._told: list[Tensor] = []

    def step(self, variables: Tensors, gradients: Tensors, loss: Tensor) -> Tensors:
        """The next generation, given the losses (targets, seeds) of the last one."""
        if loss.shape[1] < 4:
            raise AttackError(f"cma needs a population: seeds=20, say, not seeds={loss.shape[1]}")
        if not self._told:
            self._start = joined(variables).view(*loss.shape, -1).cpu()
        self._told.append(loss.detach().cpu())
        drawn = self._generation(self._told[-1], len(self._told) == 1)
        return parted(drawn.flatten(0, 1).to(loss.device), variables)

    def _generation(self, loss: Tensor, first: bool) -> Tensor:
        """Tell the last generation, unless it is that of the starts, and draw another: (targets, seeds, dimensions)."""
        losses = loss.double().nan_to_num(AWFUL, AWFUL, -AWFUL).clamp(max=AWFUL).numpy()
        if first:
            self._strategies = [_strategy(start, row, self.sigma) for start, row in zip(self._start, losses, strict=True)]
        else:
            for strategy, row in zip(self._strategies, losses, strict=True):
                strategy.tell(strategy.asked, row.tolist())
        for strategy in self._strategies:
            strategy.asked = strategy.ask()
        return torch.from_numpy(np.stack([np.stack(one.asked) for one in self._strategies])).to(self._start)

    def reset(self, chosen: Tensor) -> None:
        """A strategy forgets nothing: what went wrong is its worst candidate."""

    def state(self) -> Tensors:
        """The starts, and all losses that were told."""
        return {"start": self._start, "told": torch.stack(self._told)} if self._told else {}

    def restore(self, state: Tensors) -> None:
        """Go on from a state, by telling the same again."""
        if state:
            self._start, self._told = state["start"].cpu(), list(state["told"].cpu())
            for i, losses in enumerate(self._told):
                self._generation(losses, i == 0)


def _strategy(start: Tensor, losses: "np.ndarray[Any, Any]", sigma: float) -> Any:
    """The strategy of one target, around the best of its starts (seeds, dimensions)."""
    import cma  # takes a second

    if start.shape[1] > MOST:
        raise AttackError(f"cma searches at most {MOST} numbers, not {start.shape[1]}: a generator's codes, not pixels")
    rng = np.random.RandomState(np.frombuffer(start[0].float().numpy().tobytes(), np.uint32))
    options = {"popsize": len(start), "verbose": -9, "randn": rng.randn, "seed": np.nan}
    return cma.CMAEvolutionStrategy(start[int(losses.argmin())].double().numpy(), sigma, options)
