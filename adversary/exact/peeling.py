"""Peeling: features in closed form, and then the image with these features; for small convolutional networks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from adversary import labels as label_inference
from adversary.base import Attack, AttackError, Guess, Public
from adversary.exact.features import earliest, input_before
from adversary.exact.images import ImageSearch, learned_map, rebuilt
from adversary.labels import LabelRule
from adversary.objectives import cosine
from adversary.priors import Weight
from adversary.search.optimizers import Count, Rate
from fl_app.core.local import LocalRule, Tensors, local_update
from fl_app.core.observation import Observation, Task


@dataclass(frozen=True, kw_only=True)
class Peeling(Attack):
    """Ours, for one image per update of a network whose last convolution, ReLU and max pooling lead to linear layers.

    The first linear layer's gradient gives its input, the convolution's gradient then gives the convolution's (`pooling`),
    and images are searched that have these features and little variation, in brightness and in colour; their mean is the
    answer. Several local steps of SGD are told apart first (`steps`).
    """

    needs_public: ClassVar[bool] = False
    labels: LabelRule = "count"
    iterations: Count = 600
    """Of the search."""
    seeds: Count = 4
    """Images that are searched side by side and averaged."""
    lr: Rate = 0.2
    tv: Weight = 0.3
    colour: Weight = 0.3
    """Weight of the variation of colours."""
    public: bool = False
    """Start from a linear map of features to images that is learned from public examples at the weights of the round."""

    @property
    def trained(self) -> bool:  # type: ignore[override]
        """Whether it starts from public examples."""
        return self.public

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """The map of features to images."""
        return learned_map(task, seen.params, earliest(seen.update, seen.params, task), public)

    def cost(self, examples: int, rule: LocalRule) -> float:
        """Half a gradient per iteration, and some thousands for the equations."""
        return 0.5 * self.iterations * self.seeds + 5000.0

    def shortened(self, iterations: int) -> "Peeling":
        """With so many iterations."""
        return replace(self, iterations=iterations)

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Peel each target by itself."""
        if seen[0].num_examples != 1:
            raise AttackError(f"peeling takes updates of one image, not of {seen[0].num_examples}: use a search")
        answers = []
        for one, stream in zip(seen, streams, strict=True):
            y = label_inference.infer(self.labels, one, task, stream).to(_like(one).device)
            x = self._peel(one, y, task, stream)
            answers.append(Guess(x, y, cosine(local_update(task.model, one.params, x, y, one.rule), one.update)))
        return Guess.stacked(answers)

    def _peel(self, seen: Observation, y: Tensor, task: Task, stream: torch.Generator) -> Tensor:
        known = input_before(seen, y, task)
        noise = task.space.noise(self.seeds, stream).to(known.value)
        search = ImageSearch(iterations=self.iterations, lr=self.lr, tv=self.tv, colour=self.colour)
        return rebuilt(known.value.flatten(1), known.layer, task, seen.params, self.learned, search, noise)


def _like(seen: Observation) -> Tensor:
    return next(iter(seen.params.values()))
