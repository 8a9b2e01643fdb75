"""The optimisation behind gradient matching: where some targets' searches start, and their course to the best answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adversary.base import AttackError, Guess
from adversary.search.checkpoint import Attempt, Checkpoint
from adversary.search.comparison import Comparison, Target
from adversary.search.footprint import bytes_of
from adversary.search.found import Found
from adversary.search.progress import Pace, out_of_time
from adversary.search.variables import LABELS, like, of_observer, of_space
from adversary.spaces.base import Continuing, Leaping
from fl_app.core.local import Tensors
from fl_app.core.observation import Task
from fl_app.core.spec import text_of

if TYPE_CHECKING:
    from adversary.search.matching import Matching


class Problem(Comparison):
    """Targets that are searched together."""

    def __init__(
        self,
        attack: Matching,
        targets: Sequence[Target],
        task: Task,
        streams: Sequence[torch.Generator],
        classes: Sequence[Tensor] | None,
    ) -> None:
        super().__init__(attack, targets, task, streams, classes)
        self._start: Tensors = {}

    def check_phase(self) -> None:
        """Refuse to be a phase where the space cannot start from another one."""
        if not isinstance(self.space, Continuing):
            raise AttackError(f"{text_of(self.attack.space, {})} cannot start from another space: it is no phase")

    def after(self, before: Problem, found: Found, *, pooled: bool = False) -> Problem:
        """The same, to be started from what a search over another space found."""
        assert isinstance(self.space, Continuing)
        kept = {name: value for name, value in found.variables.items() if name not in of_space(found.variables)}
        with torch.no_grad():
            self._start = {**self.space.continued(of_space(found.every if pooled else found.variables), before.space), **kept}
        return self

    def footprint(self) -> int:
        """About how many bytes a step of these targets takes, and what the optimiser remembers; none of their draws is used."""
        streams = self.streams
        self.streams = [torch.Generator().manual_seed(0) for _ in streams]
        try:
            start = self._start or self._drawn()
            kept = sum(value.nbytes for value in start.values()) * self.attack.optimizer.remembers
            return bytes_of(lambda: self.gradients(start)) + kept
        finally:
            self.streams = streams

    def draw(self) -> Tensors:
        """Starts: where the search before it ended, or the best of some draws by the loss; each (targets, seeds, ...)."""
        if self._start:
            return {name: value.clone() for name, value in self._start.items()}
        best = self._drawn()
        if self.attack.optimizer.tries == 1:
            return best
        with torch.no_grad():
            least = self.losses(best)
            for _ in range(self.attack.optimizer.tries - 1):
                other = self._drawn()
                loss = self.losses(other)
                better = loss < least
                least = torch.where(better, loss, least)
                best = {name: torch.where(like(better, value), other[name], value) for name, value in best.items()}
        return best

    def _drawn(self) -> Tensors:
        """Draws of the space's variables, and of label logits if labels are searched for."""
        drawn = []
        for stream, target in zip(self.streams, self.targets, strict=True):
            z = self.space.draw(self.attack.seeds, self.examples, stream)
            if self.classes is None:
                shape = (self.attack.seeds, self.examples, self.task.num_classes)
                z = {**z, LABELS: torch.randn(shape, generator=stream)}
            for number, observer in enumerate(self.attack.observers):
                for name, value in observer.draw(target[0], self.task).items():
                    z = {**z, f"{number}/{name}": value.cpu().expand(self.attack.seeds, *value.shape).clone()}
            drawn.append(z)
        return {name: torch.stack([z[name] for z in drawn]).to(self.device) for name in drawn[0]}

    def solve(self) -> Found:
        """The best of all attempts by the attack's own loss."""
        settings = self.attack.optimizer
        best = self._attempt()
        for _ in range(settings.restarts - 1):
            if out_of_time():
                break
            open_ = [i for i, loss in enumerate(best.guess.loss.tolist()) if not loss < settings.solved]
            if not open_:
                break
            best.take(self._only(open_)._attempt(), open_)
        return best

    def _only(self, chosen: list[int]) -> Problem:
        classes = None if self.classes is None else [self.classes[i] for i in chosen]
        targets = [self.targets[i] for i in chosen]
        only = Problem(self.attack, targets, self.task, [self.streams[i] for i in chosen], classes)
        only._start = {name: value[chosen] for name, value in self._start.items()}
        return only

    def _attempt(self) -> Found:
        settings, checkpoint = self.attack.optimizer, self._checkpoint()
        at = Attempt(self.draw(), settings.start(self.residuals), self.streams)
        checkpoint.load(at)
        pace = Pace(settings.iterations)
        while not at.over:
            pace.at(at.iteration)
            checkpoint.at(at)
            self._iterate(at)
            at.iteration += 1
            last = self.progress + 1 / self.objective.stages >= 1  # a change of the objective moves all of them again
            at.over |= at.iteration == settings.iterations or (last and at.steps.settled)
            at.over |= not at.over and out_of_time()
        checkpoint.keep(at)
        winner = torch.where(at.best_loss.isfinite(), at.best_loss, torch.inf).argmin(1)
        pick = torch.arange(len(winner), device=winner.device), winner
        chosen = {name: value[pick][:, None] for name, value in at.best.items()}
        y = chosen[LABELS][:, 0].argmax(-1) if self.classes is None else self.classes
        guess = Guess(self.space.answer(of_space(chosen))[:, 0], y.clone(), at.best_loss[pick])
        return Found(guess, chosen, at.distance[pick], at.best)

    def _iterate(self, at: Attempt) -> None:
        """Evaluate the variables, remember the best, move them; the attempt is over if all targets are found."""
        settings = self.attack.optimizer
        if self._next_stage(at.iteration):
            at.steps.reset(torch.ones_like(at.best_loss, dtype=torch.bool))
            at.best_loss.fill_(torch.inf)
            at.distance.fill_(torch.inf)
        loss, grads = self.gradients(at.variables)
        better = loss < at.best_loss  # False for NaN
        at.best_loss = torch.where(better, loss, at.best_loss)
        at.distance = torch.where(better, loss if self._distance is None else self._distance, at.distance)
        at.best = {name: torch.where(like(better, value), value, at.best[name]) for name, value in at.variables.items()}
        # Priors are never zero: what counts is that the update is explained.
        if settings.solved and bool((at.distance < settings.solved).any(1).all()):
            at.over = True
            return
        variables = at.steps.step(at.variables, grads, loss)
        variables |= self._projected(variables)
        variables = self._leapt(variables, at.iteration)
        broken = ~torch.stack([value.flatten(2).isfinite().all(-1) for value in variables.values()]).all(0)
        if not settings.survives:
            broken |= ~loss.isfinite()
        if bool(broken.any()):
            variables = self._start_anew(broken, variables)
            at.steps.reset(broken)
        at.variables = variables

    def _leapt(self, variables: Tensors, iteration: int) -> Tensors:
        """The variables after what the space tries beside: of one seed, what explains the update best, its cost included."""
        if not isinstance(self.space, Leaping) or self.attack.seeds > 1:
            return variables
        variables = {name: value.detach().clone() for name, value in variables.items()}
        own = of_space(variables)
        for candidates, cost in self.space.leaps(own, iteration, self.streams):
            losses = cost + self.judged(candidates, variables)
            pick = torch.arange(len(cost), device=cost.device), losses.argmin(1)
            for name, value in candidates.items():
                own[name].copy_(value[pick][:, None])
        return variables

    def _checkpoint(self) -> Checkpoint:
        """Where an attempt that starts now is kept, by all that its answer depends on."""
        facts = [(seen.rule, seen.num_examples, seen.knowledge.ledger) for target in self.targets for seen in target]
        tensors = {f"stream {i}": stream.get_state() for i, stream in enumerate(self.streams)}
        for number, view in enumerate(self.views):
            tensors |= {
                f"{number} {which} {name}": value for which, part in view._asdict().items() for name, value in part.items()
            }
        if self.classes is not None:
            tensors["classes"] = self.classes
        tensors |= {f"start {name}": value for name, value in self._start.items()}
        return Checkpoint(repr((text_of(self.attack, {}), facts)), tensors)

    def _projected(self, variables: Tensors) -> Tensors:
        found = self.space.project(of_space(variables))
        for number, observer in enumerate(self.attack.observers):
            own = observer.project(of_observer(variables, number))
            found |= {f"{number}/{name}": value for name, value in own.items()}
        return found

    def _next_stage(self, iteration: int) -> bool:
        """Move the objective on; whether it changed, so that losses cannot be compared with earlier ones."""
        stages, iterations = self.objective.stages, self.attack.optimizer.iterations
        before, now = ((at * stages // iterations) / stages for at in (max(0, iteration - 1), iteration))
        self.progress = now
        return now != before

    def _start_anew(self, broken: Tensor, variables: Tensors) -> Tensors:
        """Replace reconstructions that diverged (bool (targets, seeds)); only their own targets' generators are drawn from."""
        variables = {name: value.clone() for name, value in variables.items()}
        for target in broken.any(1).nonzero().flatten().tolist():
            fresh = self._only([target]).draw()
            for name, value in variables.items():
                value[target][broken[target]] = fresh[name][0][broken[target]]
        return variables
