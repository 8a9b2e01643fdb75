"""Gradient matching: find inputs whose update is the observed one, for all targets and seeds at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.func import vmap

import client_defenses
from adversary import labels as label_inference
from adversary.base import Attack, AttackError, Guess, Observation, Task
from adversary.images import Pixels
from adversary.labels import LabelRule
from adversary.objectives import OBJECTIVES, Objective
from adversary.optimizers import make_optimizer
from adversary.priors import group_consistency, norm, statistics_distance, total_variation
from client_defenses import Memory
from fl_app.local import Step, Tensors, local_update

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
    through: bool = False
    """Push the dummy gradient through the defense, if it was granted."""
    at_once: Count = 64
    """How many guesses are optimised together; bounds the memory."""

    def run(self, seen: Sequence[Observation], task: Task, rng: torch.Generator) -> Guess:
        """Attack the targets in groups that share the weights of a round."""
        # One generator a target, so that a guess does not depend on which targets are attacked beside it.
        streams = [torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=rng))) for _ in seen]
        classes = [torch.empty(0)] * len(seen)
        if self.labels != "joint":
            classes = [label_inference.infer(self.labels, one, task, stream) for one, stream in zip(seen, streams, strict=True)]
        guesses: dict[int, Guess] = {}
        for group in self._groups(seen):
            part = _Problem(self, [seen[i] for i in group], task, [streams[i] for i in group], [classes[i] for i in group])
            found = part.solve()
            for place, i in enumerate(group):
                guesses[i] = Guess(found.x[place], found.y[place], found.loss[place])
        ordered = [guesses[i] for i in range(len(seen))]
        return Guess(*(torch.stack(column) for column in zip(*ordered, strict=True)))

    def _groups(self, seen: Sequence[Observation]) -> list[list[int]]:
        by_round: dict[int, list[int]] = {}
        for i, one in enumerate(seen):
            by_round.setdefault(one.server_round, []).append(i)
        size = max(1, self.at_once // self.seeds)
        return [members[i : i + size] for members in by_round.values() for i in range(0, len(members), size)]


class _Problem:
    """The targets of one round, as one optimisation over (targets, seeds)."""

    def __init__(
        self,
        attack: GradientMatching,
        seen: list[Observation],
        task: Task,
        streams: list[torch.Generator],
        classes: list[Tensor],
    ) -> None:
        first = seen[0]
        self.attack, self.seen, self.task, self.streams = attack, seen, task, streams
        self.params = first.params
        self.device = next(iter(self.params.values())).device
        self.pixels = Pixels(task.model, attack.init)
        self.examples = first.num_examples
        self.classes = torch.stack(classes).to(self.device) if attack.labels != "joint" else None
        kept = _kept(first.update, attack.ignore, task.num_classes)
        self.observed = {name: torch.stack([one.update[name] for one in seen]) for name in kept}
        granted = {name: torch.stack([one.knowledge.statistics[name] for one in seen]) for name in first.knowledge.statistics}
        if attack.bn and not granted:
            raise AttackError("bn > 0 needs the BatchNorm statistics to be granted: add --grant statistics")
        self.statistics = granted if attack.bn else {}
        self.gradient = self._gradient(first.knowledge.defense)

    def _gradient(self, defense: str | None) -> Callable[[Step], Tensors]:
        if not self.attack.through:
            return Step.differentiable_gradient
        if defense is None:
            raise AttackError("through=True needs the defense to be granted: add --grant defense")
        known = client_defenses.build(defense)

        def gradient(step: Step) -> Tensors:
            return known.on_gradient(step.differentiable_gradient(), step, Memory.fresh(0))

        return gradient

    def draw(self) -> tuple[Tensor, Tensor]:
        """Fresh starting points: z (targets, seeds, examples, *shape), label logits (targets, seeds, examples, classes)."""
        shape = (self.attack.seeds, self.examples, *self.task.input_shape)
        z = torch.stack([self.pixels.draw(shape, stream) for stream in self.streams])
        logits = [torch.randn((*shape[:2], self.task.num_classes), generator=stream) for stream in self.streams]
        return z.to(self.device), torch.stack(logits).to(self.device)

    def losses(self, z: Tensor, logits: Tensor) -> Tensor:
        """The attack's loss of each guess, (targets, seeds)."""
        x = self.pixels.image(z)
        match = OBJECTIVES[self.attack.objective]
        rule, model = self.seen[0].rule, self.task.model

        def one(x: Tensor, y: Tensor, observed: Tensors, statistics: Tensors) -> Tensor:
            update = local_update(model, self.params, x, y, rule, self.gradient)
            distance = match({name: update[name] for name in observed}, observed)
            if statistics:
                distance = distance + self.attack.bn * statistics_distance(model, self.params, x, statistics)
            return distance

        # One flat batch over (target, seed): the inner vmap over seeds would see the same memory.
        targets, seeds = z.shape[:2]
        repeat = {name: value.repeat_interleave(seeds, 0) for name, value in self.observed.items()}
        statistics = {name: value.repeat_interleave(seeds, 0) for name, value in self.statistics.items()}
        y = logits.softmax(-1) if self.classes is None else self.classes[:, None].expand(-1, seeds, -1)
        loss = vmap(one, randomness="different")(x.flatten(0, 1), y.flatten(0, 1), repeat, statistics).view(targets, seeds)
        for weight, prior in (
            (self.attack.tv, total_variation),
            (self.attack.norm, norm),
            (self.attack.group, group_consistency),
        ):
            if weight:
                loss = loss + weight * prior(x)
        return loss

    def solve(self) -> Guess:
        """The best of all attempts by the attack's own loss."""
        best = self._attempt()
        for _ in range(self.attack.restarts - 1):
            open_ = [i for i, loss in enumerate(best.loss.tolist()) if not loss < self.attack.solved]
            if not open_:
                break
            again = self._only(open_)._attempt()
            better = [(i, place) for place, i in enumerate(open_) if not again.loss[place] >= best.loss[i]]
            for i, place in better:
                for kept, new in zip(best, again, strict=True):
                    kept[i] = new[place]
        return best

    def _only(self, chosen: list[int]) -> "_Problem":
        classes = [torch.empty(0)] * len(chosen) if self.classes is None else [self.classes[i] for i in chosen]
        part = [self.seen[i] for i in chosen]
        return _Problem(self.attack, part, self.task, [self.streams[i] for i in chosen], classes)

    def _attempt(self) -> Guess:
        z, logits = self.draw()
        joint = self.classes is None
        optimizer = make_optimizer(self.attack.optimizer, self.attack.lr, self.attack.iterations, self.attack.decay)
        best_loss = torch.full(z.shape[:2], torch.inf, device=self.device)
        best_z, best_logits = z.clone(), logits.clone()
        for _ in range(self.attack.iterations):
            variables = (
                [z.detach().requires_grad_(), logits.detach().requires_grad_()] if joint else [z.detach().requires_grad_()]
            )
            loss = self.losses(variables[0], variables[1] if joint else logits)
            grads = torch.autograd.grad(loss.sum(), variables)
            loss = loss.detach()
            better = loss < best_loss  # False for NaN
            best_loss = torch.where(better, loss, best_loss)
            best_z = torch.where(_like(better, z), z, best_z)
            best_logits = torch.where(_like(better, logits), logits, best_logits)
            if self.attack.solved and bool((best_loss < self.attack.solved).any(1).all()):
                break
            slopes = [g.sign() for g in grads] if self.attack.signed else list(grads)
            moved = optimizer.step([z, logits] if joint else [z], slopes, loss)
            z, logits = (moved[0], moved[1]) if joint else (moved[0], logits)
            if self.attack.boxed:
                z = self.pixels.clamp(z)
            broken = ~z.flatten(2).isfinite().all(-1) | (~loss.isfinite() & (self.attack.optimizer == "adam"))
            if bool(broken.any()):
                z, logits = self._start_anew(broken, z, logits)
                optimizer.reset(broken)
        winner = torch.where(best_loss.isfinite(), best_loss, torch.inf).argmin(1)
        pick = torch.arange(len(z)), winner
        y = best_logits[pick].argmax(-1) if self.classes is None else self.classes
        return Guess(self.pixels.image(best_z[pick]), y.clone(), best_loss[pick])

    def _start_anew(self, broken: Tensor, z: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Replace guesses that diverged (bool (targets, seeds)); only their own targets' generators are drawn from."""
        z, logits = z.clone(), logits.clone()
        for target in broken.any(1).nonzero().flatten().tolist():
            fresh_z, fresh_logits = self._only([target]).draw()
            z[target][broken[target]] = fresh_z[0][broken[target]]
            logits[target][broken[target]] = fresh_logits[0][broken[target]]
        return z, logits


def _like(mask: Tensor, value: Tensor) -> Tensor:
    return mask.view(*mask.shape, *[1] * (value.ndim - mask.ndim))


def _kept(update: Tensors, ignore: tuple[str, ...], num_classes: int) -> list[str]:
    words = list(ignore)
    if "last" in words:
        weight, _ = label_inference.last_layer(update, num_classes)
        name = next(name for name, value in update.items() if value is weight)
        words[words.index("last")] = name.removesuffix("weight")
    kept = [name for name in update if not any(word in name for word in words)]
    if not kept:
        raise AttackError(f"ignore={list(ignore)} leaves nothing to match; the parameters are {list(update)}")
    return kept
