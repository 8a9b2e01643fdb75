"""The bounds of a run, from its captures."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from client_defenses.tools.accounting import participations
from fl_app.analysis.bounds.identifiability import STEPS, directions_for, identifiability, is_exact
from fl_app.analysis.bounds.information import bayesian, unbiased
from fl_app.analysis.bounds.layers import layer_ranks
from fl_app.analysis.bounds.prior import Prior, of_class
from fl_app.analysis.bounds.results import At, Bounds, TargetBounds
from fl_app.analysis.bounds.robustness import Robustness, blind_rate, robustness
from fl_app.analysis.bounds.sensitivity import Sensitivity, Tick, silent
from fl_app.analysis.bounds.sent import Sent, is_smooth, plain, whitened, why_not_noise
from fl_app.core.local import Tensors
from fl_app.core.observation import Key, Observation
from fl_app.core.seeds import derive, generator
from fl_app.core.selection import select
from fl_app.experiment.assets import Assets, assets_of
from fl_app.experiment.fingerprint import check_data
from fl_app.experiment.runs import experiment_of
from fl_app.experiment.truth import clients_behind, true_aggregate
from fl_app.scoring.metrics import METRICS
from fl_app.store.captures import Captures
from fl_app.store.files import RunError
from fl_app.store.runs import RunDir

WIDE = 10**5
"""Parameters up to which everything is computed in float64."""
PUBLIC = 10_000
"""The most public examples that are looked at."""
COMPONENTS = 32
"""Directions of the prior that are looked at where a direction takes long."""
LEVELS = (20.0, 30.0)
"""PSNR beside the usual threshold at which the success of attacks is bounded."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is computed; 0 stands for as much as is quick."""

    at: At = "true"
    directions: int = 0
    components: int = 0
    draws: int = 8


class Plan(NamedTuple):
    """Directions that are tried for one target: of the batch, of one example, of the prior by draw; and how many there are."""

    batch: int
    one: int
    prior: int
    unknowns: int
    pixels: int

    @property
    def alone(self) -> bool:
        """Whether the first example is also looked at by itself."""
        return self.unknowns > self.pixels == self.one

    def total(self, draws: int) -> int:
        """How many in all, with those of Lanczos, for the progress; `draws` of the prior, 0 if there is no law of noise."""
        found = self.batch + (STEPS if self.batch < self.unknowns else 0) + (self.one if self.alone else 0)
        if draws:
            found += self.one + (STEPS if self.one < self.pixels else 0) + draws * self.prior
        return found


class Bounding:
    """The work on one run: made first, which reads captures and data, then `run`."""

    def __init__(self, run: RunDir, effort: Effort, rounds: str = "all", clients: str = "all", limit: int = 0) -> None:
        self.run_dir, self.effort = run, effort
        self.experiment = experiment_of(run)
        check_data(run.path, self.experiment)
        self.captures = Captures(run.path / "captures")
        in_round, of_client = select(rounds, 1, "rounds"), select(clients, 0, "clients")
        every = self.captures.targets()
        if not every:
            raise RunError(f"{run.path} has no captures: run with -c capture=1 (or all, or 1-5) to keep some")
        self.keys = [key for key in every if key[0] in in_round and (key[1] == -1 or key[1] in of_client)][: limit or None]
        if not self.keys:
            raise RunError(f"{run.path} has no captures of --rounds {rounds} --clients {clients}")
        self.assets: Assets = assets_of(self.experiment.changed(device="cpu"))
        self.rule = self.experiment.rule
        self.aggregate = self.experiment.seen == "aggregate"
        if self.aggregate and self.rule.kind == "delta":
            raise RunError("the aggregate of several clients' local steps is no function of one batch: there is no bound")
        self.no_noise = why_not_noise(self.assets.defense, self.rule, aggregate=self.aggregate)
        test = self.assets.splits.test
        self.public_x, self.public_y = test.at(slice(0, PUBLIC))
        self.pixels = self.public_x[0].numel()
        self.entries = sum(value.numel() for value in self.assets.model.parameters())
        self.dtype = torch.float64 if self.entries <= WIDE else torch.float32
        self.model = copy.deepcopy(self.assets.model).to(self.dtype)
        self._priors: dict[int, Prior] = {}

    def total(self) -> int:
        """Directions that all targets together take."""
        found = 0
        for key in self.keys:
            y = self._inputs(key)[1]
            found += self._plan(len(y), int(y[0])).total(0 if self.no_noise else self.effort.draws)
        return found

    def run(self, tick: Tick = silent) -> Bounds:
        """All bounds of all targets."""
        targets = [self._target(key, tick) for key in self.keys]
        found, why = self._robustness()
        return Bounds(
            at=self.effort.at,
            defense=self.experiment.defense,
            public=len(self.public_y),
            targets=targets,
            layers=layer_ranks(self.assets.model, tuple(self.public_x.shape[1:]), self.assets.num_classes),
            smooth=is_smooth(self.model),
            no_noise=self.no_noise,
            robustness=found,
            no_robustness=why,
        )

    def _examples(self, server_round: int, client: int) -> int:
        return len(clients_behind(self.assets, client, server_round)) * self.rule.num_examples

    def _plan(self, examples: int, label: int) -> Plan:
        asked, unknowns = self.effort.directions, examples * self.pixels
        batch = min(unknowns, asked) if asked else directions_for(self.entries, unknowns)
        one = min(self.pixels, asked) if asked else directions_for(self.entries, self.pixels)
        components = self.effort.components or (self.pixels if is_exact(self.entries, self.pixels) else COMPONENTS)
        prior = 0 if self.no_noise else min(components, len(self._prior(label).basis))
        return Plan(batch, one, prior, unknowns, self.pixels)

    def _inputs(self, key: Key) -> tuple[Tensor, Tensor]:
        """The examples at which an update is differentiated."""
        if self.effort.at == "true":
            return true_aggregate(self.assets, clients_behind(self.assets, key[1], key[0]), key[0])
        rng = generator(self.experiment.seed, "bound at", *key)
        chosen = torch.randint(len(self.public_y), (self._examples(*key),), generator=rng)
        return self.public_x[chosen], self.public_y[chosen]

    def _target(self, key: Key, tick: Tick) -> TargetBounds:
        began = time.monotonic()
        seen: Observation = self.captures.read(self.captures.path_of(*key))
        params = {name: value.to(self.dtype) for name, value in seen.params.items()}
        x, y = self._inputs(key)
        x, plan = x.to(self.dtype), self._plan(len(y), int(y[0]))
        rng = generator(self.experiment.seed, "bound", *key)
        sent = plain(self.model, params, y, self.rule)
        whole = Sensitivity(sent, x)
        norm = whole.value.norm().item()
        batch = identifiability(whole, plan.batch, rng, norm, tick)
        alone = None
        if plan.alone:
            alone = identifiability(Sensitivity(_of_first(sent, x), x[:1]), plan.one, rng, norm, tick)
        found = TargetBounds(
            round=key[0], client=key[1], examples=len(y), batch=batch, alone=alone, seconds=time.monotonic() - began
        )
        if self.no_noise:
            return found
        at = self._information(params, x, y, derive(self.experiment.seed, "bound draws", *key))
        prior = self._prior(int(y[0])).leading(plan.prior)
        plain_bound = unbiased(at(x[0]), plan.one, rng, tick)
        every = bayesian(at, prior, self.effort.draws, rng, tick)
        return found.model_copy(update={"unbiased": plain_bound, "bayesian": every, "seconds": time.monotonic() - began})

    def _information(self, params: Tensors, x: Tensor, y: Tensor, seed: int) -> Callable[[Tensor], Sensitivity]:
        """The whitened Jacobian by the first example, at an image, the others as they are; other draws each time."""
        noise = self.assets.defense.noise_law()
        assert noise is not None
        calls = iter(range(10**9))

        def at(image: Tensor) -> Sensitivity:
            first = image.to(self.dtype).view_as(x[:1])
            inputs = torch.cat([first, x[1:]])
            draws = derive(seed, next(calls))
            sent = whitened(self.model, params, y, self.assets.defense, noise, inputs, draws)
            return Sensitivity(_of_first(sent, inputs), first)

        return at

    def _prior(self, label: int) -> Prior:
        if label not in self._priors:
            self._priors[label] = of_class(self.public_x, self.public_y, label)
        return self._priors[label]

    def _robustness(self) -> tuple[Robustness | None, str]:
        noise = self.assets.defense.noise_law()
        if noise is None or noise.kind != "normal" or noise.clip is None:
            return None, "it needs Gaussian noise on something whose norm is bounded, such as dp_sgd's or dp_gaussian's clip"
        if self.aggregate:
            return None, "an aggregate is a sum over clients, whose noise is not looked at here"
        chosen = self.experiment
        done = max([int(line.get("round", 0)) for line in self.run_dir.metrics()] + [key[0] for key in self.keys])

        def releases(rounds: int) -> int:
            return participations(
                min(len(share) for share in self.assets.shares),
                chosen.batch_size,
                rounds * chosen.local_steps,
                local_steps=chosen.local_steps,
                local_examples=chosen.local_examples,
                server_rounds=rounds,
            )

        usual = METRICS["psnr"].threshold
        levels = sorted({*([usual.value] if usual else []), *LEVELS})
        blind = {level: blind_rate(self.public_x, self.public_y, level) for level in levels}
        return robustness(noise, releases(1), releases(done), blind), ""


def _of_first(sent: Sent, x: Tensor) -> Sent:
    """The same as a function of the first example, the others as they are."""
    return lambda first: sent(torch.cat([first, x[1:]]))
