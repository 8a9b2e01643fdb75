"""Gradient matching: find inputs whose update is the observed one, for all targets and seeds at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field

from adversary import labels as label_inference
from adversary.base import Attack, AttackError, Guess, Observation, Task
from adversary.labels import LabelRule
from adversary.objectives import Objective
from adversary.problem import Problem, Target
from adversary.refiner_attacks import cleaned

Weight = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class GradientMatching(Attack):
    """Objective x priors x label rule x optimiser; the papers' attacks are presets of this."""

    objective: Objective = "l2"
    tv: Weight = 0.0
    norm: Weight = 0.0
    group: Weight = 0.0
    """Pull of the seeds of a target towards their mean; needs seeds > 1."""
    bn: Weight = 0.0
    """Weight of granted BatchNorm statistics."""
    labels: LabelRule = "count"
    optimizer: Literal["adam", "lbfgs"] = "adam"
    lr: Annotated[float, Field(gt=0)] = 0.1
    iterations: Count = 1000
    signed: bool = False
    """Descend along the sign of the gradient."""
    decay: bool = False
    """Divide the rate by 10 after 3/8, 5/8 and 7/8 of the iterations."""
    boxed: bool = True
    """Keep the pixels in [0, 1] after each step."""
    init: Literal["normal", "uniform"] = "normal"
    seeds: Count = 1
    """Guesses of a target that are optimised side by side."""
    restarts: Count = 1
    """Attempts at a target; only targets whose loss is not below `solved` are tried again."""
    solved: Weight = 0.0
    ignore: tuple[str, ...] = ()
    """Parameters whose names contain one of these are left out of the match; 'last' stands for the last layer."""
    support: bool = False
    """Compare only entries that are not zero in what was sent: those that a sparse defense kept."""
    through: bool = False
    """Compare with what the defense, if it was granted, is expected to make of the dummy gradient."""
    eps: Weight = 0.0
    """Radius of the objectives 'ball' and 'shell': how far from the true gradient the defense lets its own be."""
    unblend: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of uniform noise that the defense blends in: taken out of the guess, then smoothed by total variation."""
    noise: Weight = 0.0
    """Weight of what the network `evaluator` takes for noise in a guess."""
    evaluator: str = ""
    together: Count = 1
    """Match so many rounds of a client with one guess, if it was granted that its examples repeat: noise averages out."""
    at_once: Count = 64
    """How many guesses are optimised together; bounds the memory."""

    def run(self, seen: Sequence[Observation], task: Task, rng: torch.Generator) -> Guess:
        """Attack the targets in groups that share the weights of a round."""
        # One generator a target, so that a guess does not depend on which targets are attacked beside it.
        streams = [torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=rng))) for _ in seen]
        guesses: dict[int, Guess] = {}
        for group in self._groups(seen):
            targets: list[Target] = [tuple(seen[i] for i in members) for members in group]
            own = [streams[members[0]] for members in group]
            classes = [torch.empty(0)] * len(group)
            if self.labels != "joint":
                classes = [
                    label_inference.infer(self.labels, _mean(target), task, stream)
                    for target, stream in zip(targets, own, strict=True)
                ]
            found = Problem(self, targets, task, own, classes).solve()
            if self.unblend:
                found = found._replace(x=cleaned(found.x, self.unblend))
            for place, members in enumerate(group):
                for i in members:
                    guesses[i] = Guess(found.x[place], found.y[place], found.loss[place])
        ordered = [guesses[i] for i in range(len(seen))]
        return Guess(*(torch.stack(column) for column in zip(*ordered, strict=True)))

    def _groups(self, seen: Sequence[Observation]) -> list[list[tuple[int, ...]]]:
        """Targets, each the positions of its rounds, in groups of the same rounds that are optimised at once."""
        by_rounds: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for members in self._targets(seen):
            by_rounds.setdefault(tuple(seen[i].server_round for i in members), []).append(members)
        size = max(1, self.at_once // self.seeds)
        return [group[i : i + size] for group in by_rounds.values() for i in range(0, len(group), size)]

    def _targets(self, seen: Sequence[Observation]) -> list[tuple[int, ...]]:
        if self.together == 1:
            return [(i,) for i in range(len(seen))]
        if not all(one.knowledge.repeats for one in seen):
            raise AttackError("together > 1 needs to be told that the clients' examples repeat: add --grant repeats")
        by_client: dict[int, list[int]] = {}
        for i in sorted(range(len(seen)), key=lambda i: seen[i].server_round):
            by_client.setdefault(seen[i].client, []).append(i)
        size = self.together
        return [tuple(all_[i : i + size]) for all_ in by_client.values() for i in range(0, len(all_), size)]


def _mean(target: Target) -> Observation:
    """The rounds of a target as one: labels are read off the mean of its updates."""
    if len(target) == 1:
        return target[0]
    update = {name: torch.stack([one.update[name] for one in target]).mean(0) for name in target[0].update}
    return replace(target[0], update=update)
