"""Attacks on several local steps, as presets of gradient matching; any other attack unrolls the steps in the client's order."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from adversary.base import AttackError, Guess
from adversary.objectives import Cosine
from adversary.presets import Preset
from adversary.priors import SameMean, TotalVariation, Weight
from adversary.search.matching import Matching
from adversary.search.optimizers import LBFGS, Adam, Count, Rate
from adversary.search.surrogate import Surrogate
from adversary.spaces.epochs import Epochs
from adversary.spaces.pixels import Init, Pixels
from fl_app.core.observation import Observation, Task


@dataclass(frozen=True, kw_only=True)
class SME(Preset):
    """Surrogate model extension (Zhu et al. 2023): local steps as one gradient, at weights that are searched for."""

    tv: Weight = 1e-3
    iterations: Count = 1000
    lbfgs: bool = True
    """Search by L-BFGS (ours), or by the paper's Adam with step decay."""
    lr: Rate = 0.1
    """Of Adam."""
    init: Init = "uniform"
    compiled: bool = False

    def matching(self) -> Matching:
        """Cosine at surrogate weights."""
        return Matching(
            objective=Cosine(),
            space=Pixels(init=self.init, boxed=not self.lbfgs),
            priors=(TotalVariation(weight=self.tv),) if self.tv else (),
            labels=self.labels,
            observers=(Surrogate(),),
            optimizer=LBFGS(iterations=self.iterations)
            if self.lbfgs
            else Adam(iterations=self.iterations, lr=self.lr, decay=True),
            compiled=self.compiled,
        )


@dataclass(frozen=True, kw_only=True)
class Epochwise(Preset):
    """Dimitrov et al. (2022), for clients that shuffle: unrolled, each epoch with examples of its own, tied by their mean."""

    tv: Weight = 1e-3
    tie: Weight = 1.0
    """Weight of the squared difference between the epochs' mean images."""
    iterations: Count = 500
    init: Init = "uniform"
    compiled: bool = False

    def matching(self, epochs: int = 1) -> Matching:
        """Cosine under L-BFGS (ours; the paper's are L2 and Adam)."""
        priors = (TotalVariation(weight=self.tv), SameMean(weight=self.tie, epochs=epochs))
        return Matching(
            objective=Cosine(),
            space=Epochs(number=epochs, init=self.init, boxed=False),
            priors=tuple(prior for prior in priors if prior.weight),
            labels=self.labels,
            optimizer=LBFGS(iterations=self.iterations),
            compiled=self.compiled,
        )

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Run the search with as many epochs as the rule has."""
        rule, examples = seen[0].rule, seen[0].num_examples
        epochs, rest = divmod(rule.steps * min(rule.batch_size, examples), examples)
        if rest or examples % min(rule.batch_size, examples):
            raise AttackError(f"epochwise needs whole epochs in whole batches: {rule.code()} on {examples} examples has none")
        return self.matching(epochs).run(seen, task, streams)
