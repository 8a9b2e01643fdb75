"""Attacks that search in a generator: GGL, GIAS and GIFD, presets of gradient matching in phases."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from adversary.adapted import Adapted
from adversary.base import Attack, Facts, Guess, Informed, Public
from adversary.labels import LabelRule
from adversary.objectives import L2, Cosine
from adversary.presets import Preset
from adversary.priors import TotalVariation, Weight
from adversary.search.matching import Matching
from adversary.search.optimizers import CMA, Adam, Count, Optimizer, Rate
from adversary.search.phases import Phase
from adversary.spaces.base import Parametrisation
from adversary.spaces.feature_maps import FeatureMaps
from adversary.spaces.generator_weights import GeneratorWeights
from adversary.spaces.latent import Generated, Latent
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task

AT_ONCE = 16
"""Targets that are searched together."""


@dataclass(frozen=True, kw_only=True)
class InGenerator(Preset):
    """A search in a generator."""

    labels: LabelRule = "count_rows"  # as GGL has it, by the rows of the last layer; they stand noise
    generator: str = ""
    """The generator, by its name in the cache or its file; empty: one is made for the data set of the run."""
    at_weights: ClassVar[bool] = False

    @property
    def trained(self) -> bool:  # type: ignore[override]
        """Whether it learns a generator itself, as none is named."""
        return not self.generator

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """The small generator."""
        return Generated.learn(self.matching().space, public, task)  # type: ignore[arg-type]

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Run the search."""
        return self.taught_matching().run(seen, task, streams)

    def taught_matching(self) -> Matching:
        """The search with what was learned."""
        found: Matching = self.matching().taught(self.learned)
        return found

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """What the search becomes once it knows the defense, as far as it stays one in a generator."""
        found = self.matching().informed(defense, facts)
        return [one for one in found if isinstance(one.attack, Matching) and one.attack.space.generative]

    @abstractmethod
    def matching(self) -> Matching:
        """The search that it stands for."""


@dataclass(frozen=True, kw_only=True)
class GGL(InGenerator):
    """GGL (Li et al. 2022): codes whose image, put through what the update shows of the defense, has the observed gradient.

    Clipping and sparsity are read off the update. What it answers always looks like an image: see its control.
    """

    optimizer: Literal["adam", "cma"] = "adam"
    """Adam, or CMA-ES without gradients, as the paper has it for large generators."""
    iterations: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Steps, or generations of CMA-ES; 0: the paper's 2,500 of Adam (ours: 1,000), and 500 generations (ours: 300)."""
    population: Annotated[int, Field(ge=4, le=10**4)] = 50
    """Candidates in a generation of CMA-ES."""
    seeds: Count = 4
    """Codes that Adam searches side by side: the paper's four trials."""
    kl: Weight = 1.0
    """Of the codes' divergence from N(0, 1): the paper's 0.1 stands beside a mean over tensors, and ours is a sum of ten."""

    def matching(self) -> Matching:
        """L2 under Adam or CMA-ES."""
        free = self.optimizer == "cma"
        steps: Optimizer = CMA(iterations=self.iterations or 300) if free else Adam(iterations=self.iterations or 1000, lr=0.1)
        return Matching(
            objective=Adapted(objective=L2()),
            space=Latent(generator=self.generator, weight=self.kl),
            labels=self.labels,
            optimizer=steps,
            seeds=self.population if free else self.seeds,
            at_once=AT_ONCE * (self.population if free else self.seeds),
        )


@dataclass(frozen=True, kw_only=True)
class GIAS(InGenerator):
    """GIAS (Jeon et al. 2021): first a code, then the weights of a copy of the generator for each target."""

    iterations: Count = 500
    """Steps in the latent."""
    second: Count = 1500
    """Steps on the weights (the paper's 5,000 and more)."""
    lr: Rate = 0.03
    weights_lr: Rate = 1e-3
    """Learning rate of the weights."""
    tv: Weight = 1e-6
    seeds: Count = 3
    """Codes that are searched side by side."""

    def matching(self) -> Matching:
        """Cosine under Adam, twice."""
        first, second = (
            Adam(iterations=steps, lr=rate, decay=True)
            for steps, rate in ((self.iterations, self.lr), (self.second, self.weights_lr))
        )
        return Matching(
            objective=Cosine(),
            space=Latent(generator=self.generator, weight=0.0),
            priors=(TotalVariation(weight=self.tv),) if self.tv else (),
            labels=self.labels,
            optimizer=first,
            phases=(Phase(space=GeneratorWeights(generator=self.generator), optimizer=second),),
            seeds=self.seeds,
            at_once=AT_ONCE * self.seeds,
        )


@dataclass(frozen=True, kw_only=True)
class GIFD(InGenerator):
    """GIFD (Fang et al. 2023): first a code, then the generator's feature maps, one after the other, near where each began."""

    stages: Annotated[int, Field(ge=1, le=8)] = 2
    """How many maps are searched after the code, from the smallest on."""
    iterations: Count = 500  # the paper's 1,000, in each stage
    lr: Rate = 0.1
    kl: Weight = 0.1
    """Of the codes' divergence from N(0, 1)."""
    tv: Weight = 1e-4
    radius: Annotated[float, Field(gt=0)] = 0.05
    """Of the L1 ball, for each entry of a map."""
    seeds: Count = 4
    """Codes that are searched side by side."""

    def matching(self) -> Matching:
        """Cosine under Adam, at each stage."""
        steps = Adam(iterations=self.iterations, lr=self.lr, decay=True)
        maps = [FeatureMaps(generator=self.generator, stage=i + 1, radius=self.radius) for i in range(self.stages)]
        return Matching(
            objective=Cosine(),
            space=Latent(generator=self.generator, weight=self.kl),
            priors=(TotalVariation(weight=self.tv),) if self.tv else (),
            labels=self.labels,
            optimizer=steps,
            phases=tuple(Phase(space=space, optimizer=steps) for space in maps),
            seeds=self.seeds,
            at_once=AT_ONCE * self.seeds,
        )


def generator_of(attack: Attack) -> str | None:
    """The generator that an attack searches in, empty if it names none; None if it needs none."""
    return next((one.generator for one in _spaces(attack)), None)


def with_generator(attack: Attack, name: str) -> Attack:
    """The attack in a generator of that name, wherever it searches in one."""
    if isinstance(attack, InGenerator):
        return replace(attack, generator=name)
    if isinstance(attack, Matching):
        phases = tuple(replace(one, space=_named(one.space, name)) for one in attack.phases)
        return replace(attack, space=_named(attack.space, name), phases=phases)
    return attack


def _named(space: Parametrisation, name: str) -> Any:
    return replace(space, generator=name) if isinstance(space, Generated) else space


def _spaces(attack: Attack) -> list[Generated]:
    search = attack.matching() if isinstance(attack, InGenerator) else attack
    spaces = [search.space, *(one.space for one in search.phases)] if isinstance(search, Matching) else []
    return [one for one in spaces if isinstance(one, Generated)]
