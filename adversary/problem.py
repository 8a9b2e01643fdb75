"""The optimisation behind gradient matching: some targets of the same rounds, as one problem over (targets, seeds)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

import client_defenses
from adversary import labels as label_inference
from adversary.base import AttackError, Guess
from adversary.images import Pixels
from adversary.latent_attack import informed_model
from adversary.objectives import cosine, robust, squared_l2
from adversary.optimizers import make_optimizer
from adversary.priors import group_consistency, norm, statistics_distance, total_variation
from adversary.refiner_attacks import ball, noise_share, shell
from client_defenses.bido import BiDO
from client_defenses.tools import evaluator as evaluation
from fl_app.core import spec
from fl_app.core.local import Step, Tensors, local_update
from fl_app.core.observation import Observation, Task

if TYPE_CHECKING:
    from adversary.matching import GradientMatching

D = TypeVar("D", bound=client_defenses.Defense)
WIDTHS = (math.inf, 4.0, 2.0, 1.0)
Target = tuple[Observation, ...]
"""The rounds in which a client used the same examples; mostly one."""


class View(NamedTuple):
    """What one round shows of all targets: its weights, and their updates stacked, (targets, *parameter shape)."""

    params: Tensors
    observed: Tensors


class Problem:
    """Targets that were seen in the same rounds."""

    def __init__(
        self,
        attack: GradientMatching,
        targets: Sequence[Target],
        task: Task,
        streams: Sequence[torch.Generator],
        classes: Sequence[Tensor],
    ) -> None:
        first = targets[0][0]
        self.attack, self.targets, self.task, self.streams = attack, targets, task, streams
        self.rule, self.examples = first.rule, first.num_examples
        self.device = next(iter(first.params.values())).device
        self.pixels = Pixels(task.model, attack.init)
        known = first.knowledge.defense
        self.model = informed_model(task, known) if attack.through and known else task.model
        self.classes = torch.stack(list(classes)).to(self.device) if attack.labels != "joint" else None
        kept = _kept(first.update, attack.ignore, task.num_classes)
        self.views = [
            View(seen[0].params, {name: torch.stack([one.update[name] for one in seen]) for name in kept})
            for seen in zip(*targets, strict=True)
        ]
        granted = [target[0].knowledge.statistics for target in targets]
        if attack.bn and not granted[0]:
            raise AttackError("bn > 0 needs the BatchNorm statistics to be granted: add --grant statistics")
        self.statistics = {name: torch.stack([each[name] for each in granted]) for name in granted[0]} if attack.bn else {}
        self.gradient = self._gradient(first.knowledge.defense)
        self.width = WIDTHS[-1]
        if attack.noise and not attack.evaluator:
            raise AttackError("noise > 0 needs evaluator='FILE': make one with thorns train-evaluator")
        self.evaluator = evaluation.load(attack.evaluator, self.device) if attack.noise else None
        self._compiled = self._compile() if attack.compiled else None

    def _gradient(self, defense: str | None) -> Callable[[Step], Tensors]:
        if not self.attack.through:
            return Step.differentiable_gradient
        if defense is None:
            raise AttackError("through=True needs the defense to be granted: add --grant defense")
        known, penalised = client_defenses.build(defense), known_part(defense, BiDO)
        taken = Step.differentiable_gradient if penalised is None else penalised.differentiable_gradient
        return lambda step: known.expected(taken(step))

    def draw(self) -> tuple[Tensor, Tensor]:
        """Fresh starting points: z (targets, seeds, examples, *shape), label logits (targets, seeds, examples, classes)."""
        shape = (self.attack.seeds, self.examples, *self.task.input_shape)
        z = torch.stack([self.pixels.draw(shape, stream) for stream in self.streams])
        logits = [torch.randn((*shape[:2], self.task.num_classes), generator=stream) for stream in self.streams]
        return z.to(self.device), torch.stack(logits).to(self.device)

    def losses(self, z: Tensor, logits: Tensor) -> Tensor:
        """The attack's loss of each guess, (targets, seeds)."""
        x = self.pixels.image(z)
        y = logits.softmax(-1) if self.classes is None else self.classes[:, None].expand(-1, z.shape[1], -1)
        loss = torch.stack([self._distances(view, x, y) for view in self.views]).mean(0)
        for weight, prior in (
            (self.attack.tv, total_variation),
            (self.attack.norm, norm),
            (self.attack.group, group_consistency),
        ):
            if weight:
                loss = loss + weight * prior(x)
        if self.evaluator is not None:
            loss = loss + self.attack.noise * noise_share(x, self.evaluator.__call__)
        return loss

    def _distances(self, view: View, x: Tensor, y: Tensor) -> Tensor:
        """How far the updates of the guesses are from what a round shows, (targets, seeds)."""
        model = self.model

        def one(x: Tensor, y: Tensor, observed: Tensors, statistics: Tensors) -> Tensor:
            update = local_update(model, view.params, x, y, self.rule, self.gradient)
            if self.attack.support:
                update = {name: update[name] * (observed[name] != 0) for name in observed}
            far = self._far({name: update[name] for name in observed}, observed)
            if statistics:
                far = far + self.attack.bn * statistics_distance(model, view.params, x, statistics)
            return far

        # One flat batch over (target, seed): an inner vmap over seeds would see the same memory.
        targets, seeds = x.shape[:2]
        repeated = {name: value.repeat_interleave(seeds, 0) for name, value in view.observed.items()}
        statistics = {name: value.repeat_interleave(seeds, 0) for name, value in self.statistics.items()}
        flat = vmap(one, randomness="different")(x.flatten(0, 1), y.flatten(0, 1), repeated, statistics)
        return flat.view(targets, seeds)

    def _far(self, update: Tensors, observed: Tensors) -> Tensor:
        """The objective of one guess."""
        match self.attack.objective:
            case "l2":
                return squared_l2(update, observed)
            case "cosine":
                return cosine(update, observed)
            case "robust":
                return robust(update, observed, self.width)
            case "ball":
                return ball(update, observed, self.attack.eps)
            case "shell":
                return shell(update, observed, self.attack.eps)

    def slopes(self, z: Tensor, logits: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(the losses, their slopes in all that is looked for: z, and the logits if the labels are not known)."""
        if self._compiled is not None:
            with torch.no_grad():
                grads, (_, loss) = self._compiled(z, logits)
            return loss, list(grads)
        variables = [value.detach().requires_grad_() for value in ((z, logits) if self.classes is None else (z,))]
        loss = self.losses(variables[0], variables[-1] if self.classes is None else logits)
        return loss.detach(), list(torch.autograd.grad(loss.sum(), variables))

    def _compile(self) -> Callable[[Tensor, Tensor], tuple[tuple[Tensor, ...], tuple[Tensor, Tensor]]]:
        def total(z: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
            loss = self.losses(z, logits)
            return loss.sum(), loss

        step = grad_and_value(total, (0, 1) if self.classes is None else (0,), has_aux=True)
        return torch.compile(step)

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

    def _only(self, chosen: list[int]) -> Problem:
        classes = [torch.empty(0)] * len(chosen) if self.classes is None else [self.classes[i] for i in chosen]
        targets = [self.targets[i] for i in chosen]
        return Problem(self.attack, targets, self.task, [self.streams[i] for i in chosen], classes)

    def _attempt(self) -> Guess:
        z, logits = self.draw()
        joint = self.classes is None
        optimizer = make_optimizer(self.attack.optimizer, self.attack.lr, self.attack.iterations, self.attack.decay)
        best_loss = torch.full(z.shape[:2], torch.inf, device=self.device)
        best_z, best_logits = z.clone(), logits.clone()
        for iteration in range(self.attack.iterations):
            if self._narrow(iteration):
                optimizer.reset(torch.ones_like(best_loss, dtype=torch.bool))
                best_loss.fill_(torch.inf)
            loss, grads = self.slopes(z, logits)
            better = loss < best_loss  # False for NaN
            best_loss = torch.where(better, loss, best_loss)
            best_z = torch.where(_like(better, z), z, best_z)
            best_logits = torch.where(_like(better, logits), logits, best_logits)
            if self.attack.solved and bool((best_loss < self.attack.solved).any(1).all()):
                break
            slopes = [g.sign() for g in grads] if self.attack.signed else grads
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

    def _narrow(self, iteration: int) -> bool:
        """Set the width of the robust objective; whether it changed, so that losses cannot be compared with earlier ones.

        Which entries are decoys shows only once the guess is roughly right: so all count at first, then fewer and fewer.
        """
        if self.attack.objective != "robust":
            return False
        before, self.width = self.width, WIDTHS[iteration * len(WIDTHS) // self.attack.iterations]
        return iteration > 0 and self.width != before

    def _start_anew(self, broken: Tensor, z: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Replace guesses that diverged (bool (targets, seeds)); only their own targets' generators are drawn from."""
        z, logits = z.clone(), logits.clone()
        for target in broken.any(1).nonzero().flatten().tolist():
            fresh_z, fresh_logits = self._only([target]).draw()
            z[target][broken[target]] = fresh_z[0][broken[target]]
            logits[target][broken[target]] = fresh_logits[0][broken[target]]
        return z, logits


def known_part(defense: str | None, kind: type[D]) -> D | None:
    """The part of a granted defense that is of a kind, if there is one."""
    built = (client_defenses.build(spec.write(piece)) for piece in spec.parse(defense or "none"))
    return next((part for part in built if isinstance(part, kind)), None)


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
