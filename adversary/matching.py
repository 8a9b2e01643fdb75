"""Gradient matching: find inputs whose update is the observed one, for all targets and seeds at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from adversary import labels as label_inference
from adversary.base import Attack, AttackError, Guess
from adversary.fedem_attack import remove_common, replayed
from adversary.labels import LabelRule
from adversary.objectives import Objective
from adversary.problem import Problem, Target, known_part
from adversary.refiner_attacks import cleaned
from client_defenses.fedem import FedEM
from fl_app.core.local import Step
from fl_app.core.observation import Observation, Task

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
    common: Weight = 0.0
    """Largest norm of a perturbation that a client's examples share: its estimate is taken out of the guesses."""
    replay: bool = False
    """Take out of a guess the perturbation that FedEM, if it was granted, would give it."""
    noise: Weight = 0.0
    """Weight of what the network `evaluator` takes for noise in a guess."""
    evaluator: str = ""
    together: Count = 1
    """Match so many rounds of a client with one guess, if it was granted that its examples repeat: noise averages out."""
    at_once: Count = 64
    """How many guesses are optimised together; bounds the memory."""
    compiled: bool = False
    """Compile the step with torch.compile: faster, after half a minute; needs a C++ compiler, rounds in another way."""

    @property
    def by_client(self) -> bool:
        """Whether the rounds of a client have to be attacked in one call."""
        return self.together > 1 or self.common > 0

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
            if self.replay:
                defense, steps = self._replayable(targets[0][0]), zip(found.x, found.y, targets, strict=True)
                guessed = [Step(target[0].params, task.model, x, y) for x, y, target in steps]
                clean = [replayed(guess, defense, stream) for guess, stream in zip(guessed, own, strict=True)]
                found = found._replace(x=torch.stack(clean))
            for place, members in enumerate(group):
                for i in members:
                    guesses[i] = Guess(found.x[place], found.y[place], found.loss[place])
        ordered = [guesses[i] for i in range(len(seen))]
        guess = Guess(*(torch.stack(column) for column in zip(*ordered, strict=True)))
        return guess._replace(x=self._without_common(guess.x, seen)) if self.common else guess

    @staticmethod
    def _replayable(seen: Observation) -> FedEM:
        """The perturbing defense behind an observation; what it did in earlier local steps cannot be told."""
        defense = known_part(seen.knowledge.defense, FedEM)
        if defense is None or seen.rule.kind != "gradient":
            raise AttackError("replay=True needs updates that are gradients and fedem to be granted: add --grant defense")
        return defense

    def _without_common(self, x: Tensor, seen: Sequence[Observation]) -> Tensor:
        """Guesses (targets, examples, *shape) less what those of a client share; a lone guess shares nothing and stays."""
        clients = torch.tensor([one.client for one in seen])
        cleared = x.clone()
        for client in clients.unique().tolist():
            own = x[clients == client].flatten(0, 1)
            if len(own) > 1:
                cleared[clients == client] = remove_common(own, self.common).view_as(cleared[clients == client])
        return cleared

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
