"""The papers' searches for text, as presets of gradient matching over word vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from adversary.base import Guess, Public
from adversary.labels import LabelRule
from adversary.presets import Preset
from adversary.priors import Weight
from adversary.search.matching import Matching
from adversary.search.optimizers import Adam, Count, Rate
from adversary.spaces.words import Number, Words
from adversary.text.objectives import CosineTensors, Tag
from adversary.text.priors import WordNorm
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task


@dataclass(frozen=True, kw_only=True)
class TextSearch(Preset):
    """A search over word vectors, with a language model of public text where it moves words about."""

    of_text: ClassVar[bool] = True
    trained: ClassVar[bool] = True
    needs_public: ClassVar[bool] = False
    at_weights: ClassVar[bool] = False
    labels: LabelRule = "count"
    iterations: Count = 2000
    lr: Rate = 0.01

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """The language model."""
        return self.matching().learn(task, seen, public, rng)

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Run the search with what was learned."""
        return self.matching().taught(self.learned).run(seen, task, streams)


@dataclass(frozen=True, kw_only=True)
class TAG(TextSearch):
    """TAG (Deng et al. 2021): squared and absolute distance, Adam, one N(0, 1) start, and nothing that knows of language."""

    trained: ClassVar[bool] = False
    l1: Weight = 0.01
    """Weight of the absolute distance."""
    iterations: Count = 2500
    lr: Rate = 0.1

    def matching(self) -> Matching:
        """TAG's distance under Adam."""
        return Matching(
            objective=Tag(l1=self.l1),
            space=Words(iterations=self.iterations),
            labels=self.labels,
            optimizer=Adam(iterations=self.iterations, lr=self.lr),
        )


@dataclass(frozen=True, kw_only=True)
class LampCos(TextSearch):
    """LAMP (Balunovic et al. 2022) with cosines: the best of many starts, norms of words, orders by a language model."""

    norm: Weight = 1.0
    """Weight of the squared difference between the mean norm of the vectors and that of words."""
    language: Weight = 0.2
    """What the surprise of a language model counts among orders."""
    draws: Count = 500
    """Starts of which the best is taken, and orders of its words."""
    orders: Number = 200
    """Orders of a sentence's words that are tried in each of 24 phases."""

    def matching(self) -> Matching:
        """The mean of cosines under Adam."""
        return self._search(CosineTensors())

    def _search(self, objective: CosineTensors | Tag) -> Matching:
        space = Words(draws=self.draws, orders=self.orders, language=self.language, iterations=self.iterations)
        return Matching(
            objective=objective,
            space=space,
            priors=(WordNorm(weight=self.norm),) if self.norm else (),
            labels=self.labels,
            optimizer=Adam(iterations=self.iterations, lr=self.lr, fall=0.89),
        )


@dataclass(frozen=True, kw_only=True)
class LampL1L2(LampCos):
    """LAMP with the distance of TAG in the place of cosines."""

    norm: Weight = 25.0
    language: Weight = 60.0
    """What the surprise of a language model counts among orders."""
    l1: Weight = 0.01
    """Weight of the absolute distance."""

    def matching(self) -> Matching:
        """TAG's distance under Adam."""
        return self._search(Tag(l1=self.l1))
