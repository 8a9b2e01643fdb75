"""What a search makes small: how far reconstructions explain what was seen, over (targets, seeds) at once, and its slopes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from adversary.priors import Scene
from adversary.search.observers import Local
from adversary.search.variables import LABELS, like, of_observer, of_space
from adversary.search.views import view_of
from fl_app.core.local import Gradient, Step, Tensors, local_update
from fl_app.core.observation import Observation, Task

if TYPE_CHECKING:
    from adversary.search.matching import Matching

TINY = 1e-30
CHUNK = 2**26
"""Numbers that the gradients of candidates may have at once: 256 MB of float32."""
Target = tuple[Observation, ...]
"""The rounds in which a client used the same examples; mostly one."""
Compiled = Callable[[Tensors], tuple[Tensors, tuple[Tensor, Tensor]]]
Measure = Callable[[Sequence[Tensors], Sequence[Tensors], float], Tensor]
"""(updates of a reconstruction by round, the observed ones, progress) -> an objective of them, or its residuals."""


class Comparison:
    """Reconstructions of targets that were seen in the same rounds, with the same weights, beside what was seen."""

    def __init__(
        self,
        attack: Matching,
        targets: Sequence[Target],
        task: Task,
        streams: Sequence[torch.Generator],
        classes: Sequence[Tensor] | None,
    ) -> None:
        first = targets[0][0]
        self.attack, self.targets, self.task, self.streams = attack, targets, task, streams
        self.rule, self.examples = first.rule, first.num_examples
        self.device = next(iter(first.params.values())).device
        self.classes = None if classes is None else torch.stack(list(classes)).to(self.device)
        self.space = attack.space.over(targets, task, self.classes, attack.learned)
        self.model, self.gradient = task.model, Step.differentiable_gradient
        for observer in attack.observers:
            self.model = observer.model(self.model, first, task)
            self.gradient = observer.gradient(self.gradient, first)
        self.objective = attack.objective.fitted(first.update, task)
        self.kept = self.objective.kept(first.update)
        self.views = [view_of(seen) for seen in zip(*targets, strict=True)]
        self.said = [prior for prior in attack.priors if prior.says(task.space)]
        self.priors = [prior.bind(Scene(list(targets), task, self.classes)) for prior in self.said]
        self.progress = 0.0
        self._distance: Tensor | None = None
        self._compiled: Compiled | None = self._compile() if attack.compiled else None

    gradient: Gradient

    def losses(self, variables: Tensors) -> Tensor:
        """The attack's loss of each reconstruction, (targets, seeds)."""
        x, y, unknown = self._guessed(variables)
        loss = self._compared(self.objective.over_rounds, x, y, unknown)
        self._distance = None if self._compiled else loss.detach()
        for prior in self.priors:
            loss = loss + prior(x)
        return loss + self.space.penalty(of_space(variables)) if self.attack.space.weighs else loss

    def residuals(self, variables: Tensors) -> Tensor:
        """The loss as a sum of squares, exactly or in the neighbourhood: (targets, seeds, residuals)."""
        x, y, unknown = self._guessed(variables)
        found = [self._compared(self.objective.residuals_over_rounds, x, y, unknown)]
        found += [prior.weight**0.5 * prior.residuals(x) for prior in self.said]
        if self.attack.space.weighs:
            found.append(self.space.residuals(of_space(variables)))
        return torch.cat(found, dim=2)

    def _guessed(self, variables: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        """(examples, labels, what else is not known) that variables stand for."""
        x = self.space.inputs(variables)
        y = variables[LABELS].softmax(-1) if self.classes is None else self.classes[:, None].expand(-1, x.shape[1], -1)
        y = y.repeat(1, 1, x.shape[2] // self.examples, *[1] * (y.ndim - 3))  # a space may hold each example several times
        return x, y, {name: value for name, value in variables.items() if "/" in name}

    def _compared(self, measure: Measure, x: Tensor, y: Tensor, unknown: Tensors) -> Tensor:
        """What a measure makes of the updates of the reconstructions and of what the rounds show, (targets, seeds, ...)."""
        observers = list(enumerate(self.attack.observers))

        def imagined(params: Tensors, x: Tensor, y: Tensor, observed: Tensors, unknown: Tensors) -> Tensors:
            """What a client with these examples would send in one round."""
            for number, observer in observers:
                params = observer.weights(params, of_observer(unknown, number), self.progress)
            local = Local(self.model, params, x, y, self.rule, self.gradient, observed)
            updates = (observer.update(local, of_observer(unknown, number)) for number, observer in observers)
            update = next((one for one in updates if one is not None), None) or local_update(*local[:-1])
            for number, observer in observers:
                update = observer.sent(update, of_observer(unknown, number))
            return update

        def one(x: list[Tensor], y: list[Tensor], rounds: list[Tensors], unknown: Tensors) -> Tensor:
            parts = zip(self.views, x, y, rounds, strict=True)
            updates = [imagined(view.params, own_x, own_y, observed, unknown) for view, own_x, own_y, observed in parts]
            kept = [{name: observed[name] for name in self.kept} for observed in rounds]
            return measure(updates, kept, self.progress)

        # One flat batch over (target, seed): an inner vmap over seeds would see the same memory.
        targets, seeds = x.shape[:2]
        repeated = [{name: value.repeat_interleave(seeds, 0) for name, value in view.observed.items()} for view in self.views]
        each = {name: value.flatten(0, 1) for name, value in unknown.items()}
        # Where each epoch has examples of its own, they come as the steps do.
        single = x.shape[2] == self.examples
        all_x, all_y = ([(view.in_order(v) if single else v).flatten(0, 1) for view in self.views] for v in (x, y))
        flat = vmap(one, randomness="different")(all_x, all_y, repeated, each)
        return flat.view(targets, seeds, *flat.shape[1:])

    def gradients(self, variables: Tensors) -> tuple[Tensor, Tensors]:
        """(the losses, the slopes to follow): their gradients by all that is searched for, and a share of those further up.

        An optimiser that needs no gradients gets none.
        """
        if not self.attack.optimizer.needs_gradients:
            with torch.no_grad():
                return self.losses(variables), {}
        loss, grads = self._slopes(variables)
        share, distance = self.attack.optimizer.further, self._distance
        if not share:
            return loss, grads
        size = torch.stack([value.flatten(2).square().sum(-1) for value in grads.values()]).sum(0).sqrt() + TINY
        _, above = self._slopes({name: value + grads[name] / like(size, value) for name, value in variables.items()})
        self._distance = distance
        return loss, {name: torch.lerp(value, above[name], share) for name, value in grads.items()}

    def _slopes(self, variables: Tensors) -> tuple[Tensor, Tensors]:
        """(the losses, their gradients)."""
        if self._compiled is not None:
            with torch.no_grad():
                grads, (_, loss) = self._compiled(variables)
            return loss, grads
        leaves = {name: value.detach().requires_grad_() for name, value in variables.items()}
        loss = self.losses(leaves)
        found = torch.autograd.grad(loss.sum(), list(leaves.values()), materialize_grads=True)  # some are only read
        return loss.detach(), dict(zip(leaves, found, strict=True))

    def _compile(self) -> Compiled:
        def total(variables: Tensors) -> tuple[Tensor, Tensor]:
            loss = self.losses(variables)
            return loss.sum(), loss

        return torch.compile(grad_and_value(total, has_aux=True))

    def judged(self, candidates: Tensors, variables: Tensors) -> Tensor:
        """The objective of candidates (targets, candidates, ...), as many at once as memory allows."""
        targets, number = next(iter(candidates.values())).shape[:2]
        size = max(1, CHUNK // (targets * sum(value[0].numel() for value in self.views[0].observed.values())))
        found = []
        for start in range(0, number, size):
            part = {name: value[:, start : start + size] for name, value in candidates.items()}
            width = len(next(iter(part.values()))[0])
            rest = {name: value.expand(-1, width, *value.shape[2:]) for name, value in variables.items() if name not in part}
            x, y, unknown = self._guessed({**rest, **part})
            with torch.no_grad():
                found.append(self._compared(self.objective.over_rounds, x, y, unknown).detach())
        return torch.cat(found, dim=1)
