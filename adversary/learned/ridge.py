"""Ridge regression from the update to the example, through the defense where it was granted (LTI's idea, without a network)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from adversary.base import LEAST_PUBLIC, Attack, AttackError, Facts, Guess, Informed, Public
from adversary.labels import infer
from adversary.learned.updates import one_by_one
from fl_app.core.local import LocalRule, Tensors
from fl_app.core.observation import Observation, Task

WEIGHTS = tuple(10.0**power for power in range(-4, 4))
"""Ridge weights that are tried, in units of the mean eigenvalue."""
HELD_OUT = 0.1


@dataclass(frozen=True, kw_only=True)
class Ridge(Attack):
    """A linear map from updates to examples, learned on public ones at the weights of the round; for one example per update.

    Its weight is chosen on public examples that were held out. It has no optimum to miss and cannot be misled by rounding,
    so what it finds is what a defense leaks at least.
    """

    trained: ClassVar[bool] = True

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """The map of updates of public examples, each tensor in units of its own size, to the examples."""
        if seen.num_examples != 1:
            raise AttackError(f"ridge rebuilds one example per update, not {seen.num_examples}")
        if len(public.x) < LEAST_PUBLIC:
            raise AttackError(f"ridge learns from at least {LEAST_PUBLIC} public examples, and there are {len(public.x)}")
        updates = one_by_one(task, seen, public.x[:, None], public.y[:, None], rng)
        size = {name: value.square().mean().sqrt().clamp_min(1e-12) for name, value in updates.items()}
        features = torch.cat([(value / size[name]).flatten(1) for name, value in updates.items()], 1)
        found = fitted(features, public.x.flatten(1))
        return {**found, **{f"size/{name}": value for name, value in size.items()}}

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """The map of each update; the labels are inferred from its rows."""
        if not self.learned:
            raise AttackError("ridge learns from public examples first, and there are none here")
        x, loss = [], []
        for one in seen:
            features = torch.cat([(value / self.learned[f"size/{name}"]).flatten() for name, value in one.update.items()])
            found = (features - self.learned["middle"]) @ self.learned["map"] + self.learned["mean"]
            x.append(found.view(1, *task.space.shape))
            loss.append((found - found.clamp(0, 1)).square().mean())
        classes = [infer("rows", one, task, stream) for one, stream in zip(seen, streams, strict=True)]
        return Guess(torch.stack(x), torch.stack(classes).to(x[0].device), torch.stack(loss))

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """The same, learned through the defense."""
        if defense == "none":
            return []
        return [Informed("", self, "learns through the defense")]

    def cost(self, examples: int, rule: LocalRule) -> float:
        """As much as a few iterations per target: nearly all of its work is done before."""
        return 100.0 * examples * rule.steps


def fitted(features: Tensor, wanted: Tensor) -> Tensors:
    """The linear map from features (n, k) to what is wanted (n, pixels): (features - middle) @ map + mean."""
    middle, mean = features.mean(0), wanted.mean(0)
    features, wanted = features - middle, wanted - mean
    few = features.shape[1] < len(features)  # the smaller of the two systems has the same answer
    last, unit = int(len(features) * (1 - HELD_OUT)), features.square().sum(1).mean()
    products = features[:last].T @ features[:last] if few else features @ features.T

    def solved(weight: float, n: int) -> Tensor:
        matrix = products if n == last or not few else features.T @ features
        matrix = matrix if few else matrix[:n, :n]
        lifted = matrix + weight * unit * torch.eye(len(matrix), device=matrix.device)
        right = features[:n].T @ wanted[:n] if few else wanted[:n]
        return cast(Tensor, torch.linalg.solve(lifted, right))

    shown = features[last:] if few else products[last:, :last]
    errors = [(shown @ solved(weight, last) - wanted[last:]).square().mean() for weight in WEIGHTS]
    found = solved(WEIGHTS[int(torch.stack(errors).argmin())], len(features))
    return {"map": found if few else features.T @ found, "middle": middle, "mean": mean}
