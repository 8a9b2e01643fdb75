"""`standard`: one attack for everybody, as AutoAttack is for adversarial examples: several, and a choice by evidence."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from adversary.base import Attack, AttackError, Facts, Guess, Informed, Other, Public
from adversary.confidences import can_count, confidences, counted
from adversary.evidence import Answer, Evidence, search_of
from adversary.exact.patches import Patches
from adversary.exact.peeling import Peeling
from adversary.exact.readout import ReadOut
from adversary.exact.spear import Spear
from adversary.labels import LabelRule, infer
from adversary.networks import CINetLBFGS
from adversary.presets import CosineLBFGS, GaussNewton, InvertingGradients, RowSearch
from adversary.priors import total_variation
from adversary.search import optimizers
from adversary.search.optimizers import Count
from adversary.search.progress import within
from adversary.spaces.untrained import Untrained
from adversary.text.bag_of_words import BagOfWords
from adversary.text.closed_form import ClosedForm
from adversary.text.dager import Dager
from adversary.text.lamp import LampCos
from fl_app.core.local import LocalRule, Tensors
from fl_app.core.observation import Observation, Task
from fl_app.core.seeds import generator
from fl_app.core.table import Rows
from fl_app.core.text import Tokens

log = logging.getLogger("thorns")
NATURAL = 1.5
"""Times the total variation that 99 % of public examples stay below: more than that does not look like one (ours)."""
BELIEVED = 0.05
"""One minus the cosine above which a search that knows of no defense has explained nothing (ours).

Undefended, L-BFGS ends below 1e-4 on smooth networks; on pruned updates, untold, at 0.09, on noisy ones at 0.9.
"""
DRAWN = 1e-3
"""One minus the cosine up to which the image of an untrained network is taken where others explain it, too (ours)."""
CLASS_MEAN = "class mean"
EXACT: dict[str, Callable[[LabelRule], Attack]] = {
    "readout": lambda labels: ReadOut(labels=labels),
    "patches": lambda labels: Patches(labels=labels),
    "spear": lambda labels: Spear(draws=1000, public=True),  # enough for 20 examples; a defended update uses them up
    "peeling": lambda labels: Peeling(labels=labels, public=True),
}
"""Who solves for the examples instead of searching, and refuses networks and batches that it is not for."""
TEXT: dict[str, Callable[[LabelRule], Attack]] = {
    "closed_form": lambda labels: ClosedForm(labels=labels),
    "dager": lambda labels: Dager(labels=labels),
    "bag_of_words": lambda labels: BagOfWords(labels=labels),
}
"""The same for text."""
KINKED = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.MaxPool2d)
"""Layers behind which Gauss-Newton loses to signed Adam, at many times its cost: 12.3 against 15.0 dB on LeNet-5 (ours)."""


@dataclass(frozen=True, kw_only=True)
class Standard(Attack):
    """Ours: exact read-outs, L-BFGS, Gauss-Newton or untrained networks, signed Adam, all that is known against the defense.

    A target is done once a reconstruction explains its update and no other could. Otherwise the answer is the most likely
    image, where somebody knows the law of the defense; else what an untrained network drew, if it explains the update; else
    what explains it best among those that look like an example, as public examples do; if none does, the mean image of the
    class that was inferred.
    """

    of_text: ClassVar[bool] = True
    trained: ClassVar[bool] = True
    needs_public: ClassVar[bool] = False
    minutes: Annotated[float, Field(gt=0)] = 5.0
    """Per target: each member gets an equal share of what is left, after which its search ends with the best that it has."""
    labels: LabelRule = "count"
    rounds: Count = 1
    """Match so many rounds of a client with one reconstruction, if it was granted that its examples repeat."""

    @property
    def by_client(self) -> bool:
        """Whether the rounds of a client have to be attacked in one call."""
        return self.rounds > 1

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """The same, with members who know the defense."""
        if defense == "none":
            return []
        rounds = facts.rounds if facts.repeats else 1
        return [Informed("", replace(self, rounds=rounds), "all that is known against the defense, and a choice by evidence")]

    def members(self, seen: Observation, task: Task, public: int) -> dict[str, Attack]:
        """Who takes part, the fastest first; the strongest only where the curvature says how an update changes."""
        exact = {name: make(self.labels) for name, make in (TEXT if isinstance(task.space, Tokens) else EXACT).items()}
        searches = exact | self._searches(task)
        defense = seen.knowledge.defense
        if defense is None:
            return searches
        facts = Facts(rounds=self.rounds, examples=seen.num_examples, repeats=seen.knowledge.repeats, public=public)
        told = {
            f"{name}: {one.name}": one.attack
            for name, attack in searches.items()
            for one in attack.informed(defense, facts)
            if one.attack is not None and set(one.grants) <= {"defense"} and not _denoises(one.attack)
        }
        # Several searches become the same attack where a defense has one of its own.
        once = {attack: name for name, attack in reversed(told.items())}
        return {name: attack for name, attack in told.items() if once[attack] == name} or searches

    def _searches(self, task: Task) -> dict[str, Attack]:
        match task.space:
            case Rows():
                return self._rows()
            case Tokens():
                return {"lamp_cos": LampCos(labels=self.labels, iterations=400, lr=0.1, draws=30, orders=15)}
        return self._images(task)

    def _images(self, task: Task) -> dict[str, Attack]:
        smooth = not any(isinstance(layer, KINKED) for layer in task.model.modules())
        strongest: dict[str, Attack] = {
            "gauss_newton": GaussNewton(labels=self.labels),
            "ci_net_lbfgs": CINetLBFGS(labels=self.labels),
        }
        return {
            "lbfgs": CosineLBFGS(labels=self.labels, iterations=500),
            **(strongest if smooth else {}),
            "signed adam": InvertingGradients(labels=self.labels, iterations=500),
        }

    def _rows(self) -> dict[str, Attack]:
        """Of a table: what rebuilds images looks for smooth ones."""
        return {"rows": RowSearch(labels=self.labels)}

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """What its members learn, the mean image of each class, and how much public examples vary."""
        known = {"public": torch.tensor(len(public.x)), **self._taught(task, seen, public, rng)}
        if isinstance(task.space, Tokens):
            return known
        if self._counts(seen, task):
            known |= confidences(task, seen.params, public)
        means = [
            public.x[chosen].mean(0) if bool((chosen := public.y == label).any()) else public.x.mean(0)
            for label in range(task.num_classes)
        ]
        variation = _variation(public.x[:, None])
        return {"means": torch.stack(means), "variation": variation.quantile(0.99), **known}

    def _counts(self, seen: Observation, task: Task) -> bool:
        """Whether classes can be counted by what the network answers to public examples: nobody has scaled the update."""
        asked = self.labels == "count" and seen.num_examples > 1 and seen.knowledge.defense is None
        return asked and can_count(seen, task)

    def _taught(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """What its members learn."""
        found: Tensors = {}
        for name, attack in self.members(seen, task, len(public.x)).items():
            if not attack.trained:
                continue
            try:
                found |= {f"{name}/{key}": value for key, value in attack.learn(task, seen, public, rng).items()}
            except AttackError as error:  # it says so again when it is asked
                log.debug("%s learns nothing here: %s", name, error)
        return found

    def cost(self, examples: int, rule: LocalRule) -> float:
        """That of its three searches."""
        searches = (GaussNewton(), CosineLBFGS(iterations=500), InvertingGradients(iterations=500))
        return sum(attack.cost(examples, rule) for attack in searches)

    def shortened(self, iterations: int) -> Attack:
        """So many iterations of L-BFGS, in which its cost is counted: an upper bound, as most targets are done early."""
        return CosineLBFGS(labels=self.labels, iterations=iterations)

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Ask one member after the other about the targets that nobody has explained yet."""
        if self.labels == "count" and "confidence" in self.learned:
            told = [replace(one, knowledge=replace(one.knowledge, labels=counted(one, task, self.learned))) for one in seen]
            learned = {name: value for name, value in self.learned.items() if name not in ("confidence", "spread")}
            return replace(self, labels="given").taught(learned).run(told, task, streams)
        until, cut = time.monotonic() + 60 * self.minutes * len(seen), list[str]()
        members = self.members(seen[0], task, int(self.learned.get("public", 0)))
        evidence = [Evidence.known_to(members.values(), one, task) for one in seen]
        answers: list[dict[str, Answer]] = [{} for _ in seen]
        if "means" in self.learned:
            for i, mean in enumerate(self._class_means(evidence, streams)):
                answers[i][CLASS_MEAN] = mean
        done = set[int]()
        for number, (name, attack) in enumerate(members.items()):
            left = until - time.monotonic()
            asked = [i for i, each in enumerate(answers) if i not in done and not _left_out(attack, evidence[i], each)]
            if not asked:
                continue
            if left <= 0:
                cut.append(name)
                continue
            try:
                with within(left / (len(members) - number)) as limit:
                    guess = self.ask(name, attack, [seen[i] for i in asked], task, [streams[i] for i in asked])
            except AttackError as error:  # one that cannot be run here leaves it to the others
                log.info("standard goes on without %s: %s", name, error)
                continue
            cut += [name] * limit.cut
            for place, i in enumerate(asked):
                answers[i][name] = evidence[i].of(Guess(guess.x[place], guess.y[place], guess.loss[place]), attack)
            # Rounds of a client stand and fall together.
            explained = {seen[i].client for i in asked if answers[i][name].certain and not self.by_client}
            done |= {i for i in asked if seen[i].client in explained}
        if not all(answers):
            raise AttackError("no member of standard can be run here: name one of them to see why")
        chosen = [self._choice(each, one.knowledge.defense is None) for each, one in zip(answers, seen, strict=True)]
        others = [{name: Other(one.x, one.y) for name, one in each.items()} for each in answers]
        remark = f"ended by the clock: {', '.join(cut)}" if cut else ""
        if remark:
            log.warning("standard, %g minutes a target, %s: another machine may answer otherwise", self.minutes, remark)
        return Guess.stacked([(one.x, one.y, one.x.new_tensor(one.distance)) for one in chosen])._replace(
            others=others, remark=remark
        )

    def ask(
        self, name: str, attack: Attack, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]
    ) -> Guess:
        """What one member answers, with what it learned and draws of its own."""
        prefix = f"{name}/"
        learned = {key.removeprefix(prefix): value for key, value in self.learned.items() if key.startswith(prefix)}
        if attack.trained and attack.needs_public and not learned:
            raise AttackError("it learns from public examples, and there are none here")
        guess = attack.taught(learned).run(seen, task, [generator(one.initial_seed(), name) for one in streams])
        assert isinstance(guess, Guess)
        return guess

    def _class_means(self, evidence: Sequence[Evidence], streams: Sequence[torch.Generator]) -> list[Answer]:
        found = []
        for one, stream in zip(evidence, streams, strict=True):
            rng = generator(stream.initial_seed(), CLASS_MEAN)
            rule = self.labels if one.seen.knowledge.defense is None or self.labels == "given" else "rows"
            y = infer("count" if rule == "joint" else rule, one.seen, one.task, rng).to(self.learned["means"].device)
            found.append(one.of(Guess(self.learned["means"][y], y, torch.zeros(()))))
        return found

    def _choice(self, answers: Mapping[str, Answer], naive: bool) -> Answer:
        """The answer by what it explains, and by what it looks like where examples are known."""
        searched = [one for name, one in answers.items() if name != CLASS_MEAN]
        certain = [one for one in searched if one.certain] or [one for one in searched if one.likely]
        certain = certain or [one for one in searched if one.drawn and _unexplained(one) < DRAWN]
        if certain or "variation" not in self.learned:
            return min(certain or searched, key=_unexplained)
        most = NATURAL * self.learned["variation"].item()
        natural = [one for one in searched if _variation(one.x[None]).item() <= most]
        natural = [one for one in natural if _unexplained(one) < BELIEVED] if naive else natural
        return min(natural or [answers[CLASS_MEAN]], key=_unexplained)


def _left_out(attack: Attack, evidence: Evidence, answers: Mapping[str, Answer]) -> bool:
    """Whether a search is not for a target, given what others found before.

    An untrained network draws what looks like an image where many images explain an update, Gauss-Newton finds the one that
    does where there is one. It is for small distances, so not where no search has explained anything; one that knows a defense
    searches for more than an image, and is not judged by the image alone unless somebody has found the most likely one.
    """
    search = search_of(attack)
    if search is None:
        return False
    if isinstance(search.space, Untrained):
        return evidence.determined
    if not isinstance(search.optimizer, optimizers.GaussNewton):
        return False
    searched = [one.distance for name, one in answers.items() if name != CLASS_MEAN]
    lost = bool(searched) and min(searched) > BELIEVED
    return not evidence.determined or (lost and (search is not attack or any(one.likely for one in answers.values())))


def _denoises(attack: Attack) -> bool:
    """Whether it searches in an estimate of the update: how well that is explained cannot be compared with the others."""
    search = search_of(attack)
    return search is not None and bool(search.denoisers)


def _unexplained(answer: Answer) -> float:
    return answer.distance


def _variation(x: Tensor) -> Tensor:
    """The mean total variation of examples x (n, examples, *shape), (n,); 0 of rows, which all look like one."""
    if x.ndim < 5:
        return x.new_zeros(len(x))
    return total_variation(x[:, None])[:, 0]
