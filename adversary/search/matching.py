"""Gradient matching: find examples whose update is the observed one, for all targets and seeds at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from adversary import labels as label_inference
from adversary import objectives
from adversary import priors as prior_pieces
from adversary.base import Attack, AttackError, Facts, Guess, Informed, Public
from adversary.denoise import DENOISERS, Denoiser
from adversary.labels import LabelRule
from adversary.objectives import L2, Objective
from adversary.priors import Prior
from adversary.search import observers as observer_pieces
from adversary.search.comparison import Target
from adversary.search.footprint import SMALL, most_at_once
from adversary.search.observers import Observer
from adversary.search.optimizers import OPTIMIZERS, Adam, Count, Optimizer
from adversary.search.phases import PHASES, Phase
from adversary.search.problem import Problem
from adversary.spaces import SPACES, Parametrisation, Pixels, Words
from fl_app.core.local import LocalRule, Tensors
from fl_app.core.observation import Observation, Task
from fl_app.core.seeds import generator
from fl_app.core.spec import Named

DENOISER = "denoiser "
"""What the names of what denoisers learned begin with."""
CONTROL = "control"
"""What the draws of a control are for."""


@dataclass(frozen=True, kw_only=True)
class Matching(Attack):
    """Objective x space x priors x labels x observers x optimiser; the papers' attacks are presets of this."""

    objective: Annotated[Objective, Named("objective", objectives.registered)] = L2()  # noqa: RUF009
    space: Annotated[Parametrisation, Named("space", lambda: SPACES)] = Pixels()  # noqa: RUF009
    priors: Annotated[tuple[Prior, ...], Named("prior", prior_pieces.registered)] = ()
    labels: LabelRule = "count"
    observers: Annotated[tuple[Observer, ...], Named("observer", observer_pieces.registered)] = ()
    """What is known of the defense, in the order in which it acts."""
    denoisers: Annotated[tuple[Denoiser, ...], Named("denoiser", lambda: DENOISERS)] = ()
    """What takes noise off an update before labels are inferred and examples searched for, one after the other."""
    optimizer: Annotated[Optimizer, Named("optimizer", lambda: OPTIMIZERS)] = Adam()  # noqa: RUF009
    phases: Annotated[tuple[Phase, ...], Named("phase", lambda: PHASES)] = ()
    """Further searches over other spaces, one after the other, each from what the last one found."""
    seeds: Count = 1
    """Reconstructions of a target that are searched side by side."""
    recounts: Annotated[int, Field(ge=0, le=100)] = 0
    """How often classes are counted again by what was found (ours); where they are others, they are searched for once more."""
    rounds: Count = 1
    """Match so many rounds of a client with one reconstruction, if it was granted that its examples repeat."""
    at_once: Count = 64
    """How many reconstructions are searched together, at the most; fewer where memory has no room for them."""
    compiled: bool = False
    """Compile the step with torch.compile: faster, after half a minute; needs a C++ compiler, rounds in another way."""

    @property
    def by_client(self) -> bool:
        """Whether the rounds of a client have to be attacked in one call."""
        return self.rounds > 1 or any(observer.by_client for observer in self.observers)

    @property
    def at_weights(self) -> bool:  # type: ignore[override]
        """Only what clean updates look like depends on weights."""
        return bool(self.denoisers)

    @property
    def trained(self) -> bool:  # type: ignore[override]
        """Whether it learns from public examples first: its space, which may count words in them, or a denoiser."""
        return bool(self.denoisers) or self._space_learns

    @property
    def _space_learns(self) -> bool:
        return self.space.trained or (isinstance(self.space, Words) and self.space.language > 0)

    @property
    def needs_public(self) -> bool:  # type: ignore[override]
        """Words are moved about without a language model, too."""
        return not self.of_text

    @property
    def of_text(self) -> bool:  # type: ignore[override]
        """Whether its space is one of words."""
        return isinstance(self.space, Words)

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """What the space learns, of examples alone, and the denoisers, at the weights of the round."""
        found = self.space.learn(public, task) if self._space_learns else {}
        for name, denoiser in self._denoisers():
            found |= {name + key: value for key, value in denoiser.learn(task, seen, public, rng).items()}
        return found

    def _denoisers(self) -> list[tuple[str, Denoiser]]:
        """Each denoiser with what the names of all that it learned begin with."""
        return [(f"{DENOISER}{number}/", one) for number, one in enumerate(self.denoisers)]

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """One attacker for each thing that can be done about the defense."""
        from adversary.informed import attackers  # only informed attackers know defenses

        return attackers(self, defense, facts)

    def cost(self, examples: int, rule: LocalRule) -> float:
        """Iterations times attempts times examples."""
        work = self.optimizer.work * self.optimizer.restarts * self.seeds + sum(one.optimizer.work for one in self.phases)
        work *= 1 + self.space.generative
        return float(work * examples * (rule.steps if all(one.unrolls for one in self.observers) else 1))

    def shortened(self, iterations: int) -> "Matching":
        """The same search with so many iterations."""
        phases = tuple(replace(one, optimizer=replace(one.optimizer, iterations=iterations)) for one in self.phases)
        return replace(self, optimizer=replace(self.optimizer, iterations=iterations, restarts=1), phases=phases)

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Search, and search again where classes turn out to be others; with a control where the space is generative."""
        if self.denoisers:
            rest = {name: value for name, value in self.learned.items() if not name.startswith(DENOISER)}
            return replace(self, denoisers=()).taught(rest).run(self._clean(seen, streams), task, streams)
        guess = self._searched(seen, task, streams)
        knowing = replace(self, labels="given").taught(self.learned)
        for _ in range(self.recounts if self.rounds == 1 else 0):
            pairs = zip(seen, guess.x, strict=True)
            found = [label_inference.again(self.labels, one, task, task.space.clamp(x)) for one, x in pairs]
            others = [(i, y) for i, ways in enumerate(found) for y in ways if not _same(y, guess.y[i])]
            if not others:
                break
            told = [replace(seen[i], knowledge=replace(seen[i].knowledge, labels=y)) for i, y in others]
            guess = _better(guess, knowing._searched(told, task, [streams[i] for i, _ in others]), [i for i, _ in others])
        return guess._replace(control=self._control(seen, guess, task, streams)) if self.space.generative else guess

    def _control(self, seen: Sequence[Observation], guess: Guess, task: Task, streams: Sequence[torch.Generator]) -> Tensor:
        """What the same search finds, with the same classes, in updates whose entries are out of order."""
        knowing = self if self.labels == "joint" else replace(self, labels="given").taught(self.learned)
        told = []
        for one, y, stream in zip(seen, guess.y, streams, strict=True):
            rng = generator(stream.initial_seed(), CONTROL)
            update = {name: _shuffled(value, rng) for name, value in one.update.items()}
            told.append(replace(one, update=update, knowledge=replace(one.knowledge, labels=y)))
        return knowing._searched(told, task, [generator(stream.initial_seed(), CONTROL, "search") for stream in streams]).x

    def _clean(self, seen: Sequence[Observation], streams: Sequence[torch.Generator]) -> Sequence[Observation]:
        """The observations with the estimates of the denoisers in the place of their updates."""
        for prefix, denoiser in self._denoisers():
            learned = {name.removeprefix(prefix): value for name, value in self.learned.items() if name.startswith(prefix)}
            if not learned:
                raise AttackError("a denoiser learns from public examples first, and there are none here")
            updates = denoiser.cleaned(learned, seen, streams)
            seen = [replace(one, update=update) for one, update in zip(seen, updates, strict=True)]
        return seen

    def _searched(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Attack the targets in groups that share the weights of a round."""
        guesses: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        for group in self._groups(seen, self._at_once(seen, task)):
            targets: list[Target] = [tuple(seen[i] for i in members) for members in group]
            own = [streams[members[0]] for members in group]
            classes = None
            if self.labels != "joint":
                pairs = zip(targets, own, strict=True)
                classes = [label_inference.infer(self.labels, _mean(target), task, stream) for target, stream in pairs]
            found = self._solved(targets, task, own, classes)
            for place, members in enumerate(group):
                for i in members:
                    guesses[i] = found.x[place], found.y[place], found.loss[place]
        guess = Guess.stacked([guesses[i] for i in range(len(seen))])
        for observer in self.observers:
            guess = observer.clean(guess, seen, task, streams)
        return guess

    def _solved(self, targets: list[Target], task: Task, streams: list[torch.Generator], classes: list[Tensor] | None) -> Guess:
        """The search over all phases: of those the answer that explains an update best."""
        searches = [replace(self, space=one.space, optimizer=one.optimizer, phases=(), seeds=1) for one in self.phases]
        problems = [Problem(one.taught(self.learned), targets, task, streams, classes) for one in searches]
        for one in problems:
            one.check_phase()  # now, and not when the searches before it are done
        before = Problem(self, targets, task, streams, classes)
        best = found = before.solve()
        for phase, problem in zip(self.phases, problems, strict=True):
            found = problem.after(before, found, pooled=phase.pooled).solve()
            best, before = found.where_better(best), problem
        return best.guess

    def _at_once(self, seen: Sequence[Observation], task: Task) -> int:
        """How many targets are searched together: as many as `at_once` says and memory has room for."""
        wanted, one = max(1, self.at_once // self.seeds), seen[0]
        numbers = sum(value.numel() for value in one.params.values()) + one.num_examples * prod(task.space.shape)
        if self.of_text or numbers * self.seeds * min(wanted, len(seen)) <= SMALL:
            return wanted
        target = tuple(seen[i] for i in self._targets(seen)[0])
        classes = None if self.labels == "joint" else [torch.zeros(one.num_examples, dtype=torch.int64)]
        searches = [self, *(replace(self, space=phase.space, optimizer=phase.optimizer, seeds=1) for phase in self.phases)]
        searches = [replace(search, compiled=False).taught(self.learned) for search in searches]
        rng = torch.Generator()
        return most_at_once(wanted, max(Problem(each, [target], task, [rng], classes).footprint() for each in searches))

    def _groups(self, seen: Sequence[Observation], size: int) -> list[list[tuple[int, ...]]]:
        """Targets, each the positions of its rounds, in groups with the same weights that are searched at once."""
        by_weights: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for members in self._targets(seen):
            by_weights.setdefault(tuple(id(seen[i].params) for i in members), []).append(members)
        return [group[i : i + size] for group in by_weights.values() for i in range(0, len(group), size)]

    def _targets(self, seen: Sequence[Observation]) -> list[tuple[int, ...]]:
        if self.rounds == 1:
            return [(i,) for i in range(len(seen))]
        if not all(one.knowledge.repeats for one in seen):
            raise AttackError("rounds > 1 needs to be told that the clients' examples repeat: add --grant repeats")
        by_client: dict[int, list[int]] = {}
        for i in sorted(range(len(seen)), key=lambda i: seen[i].server_round):
            by_client.setdefault(seen[i].client, []).append(i)
        size = self.rounds
        return [tuple(all_[i : i + size]) for all_ in by_client.values() for i in range(0, len(all_), size)]


def _shuffled(value: Tensor, rng: torch.Generator) -> Tensor:
    """The entries in random order: as large, as sparse, as coarse as before."""
    order = torch.randperm(value.numel(), generator=rng).to(value.device)
    return value.flatten()[order].view(value.shape)


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether classes are the same in some order; soft ones are not."""
    return one.shape == other.shape and torch.equal(one.cpu().sort().values, other.cpu().sort().values)


def _better(guess: Guess, other: Guess, places: Sequence[int]) -> Guess:
    """The guess, with what another one explains better of some of its targets."""
    x, y, loss = guess.x.clone(), guess.y.clone(), guess.loss.clone()
    for at, i in enumerate(places):
        if other.loss[at] < loss[i]:
            x[i], y[i], loss[i] = other.x[at], other.y[at], other.loss[at]
    return guess._replace(x=x, y=y, loss=loss)


def _mean(target: Target) -> Observation:
    """The rounds of a target as one: labels are read off the mean of its updates."""
    if len(target) == 1:
        return target[0]
    update = {name: torch.stack([one.update[name] for one in target]).mean(0) for name in target[0].update}
    return replace(target[0], update=update)
