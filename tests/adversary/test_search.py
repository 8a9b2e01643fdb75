"""The course of a search: which point is the answer, when it ends, what is tried again and what starts anew."""

import dataclasses
import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import adversary
from adversary.base import Guess
from adversary.objectives import L2, Robust
from adversary.search import checkpoint, progress
from adversary.search.found import Found
from adversary.search.optimizers import Adam, Optimizer
from adversary.search.problem import Problem
from adversary.spaces import Pixels
from helpers.tiny_search import EXAMPLES, MODEL, ROUNDS, SHAPE, TASK, Y, problem, streams, targets


@dataclass(frozen=True, kw_only=True)
class Scripted(Optimizer):
    """Steps along a script of pixels, and a memory of whom it was told to forget."""

    path: tuple[float, ...] = ()
    rests: int = 10**6

    def start(self, residuals):
        return Walk(self)


class Walk:
    def __init__(self, settings):
        self.settings, self.taken, self.forgotten = settings, 0, []

    @property
    def settled(self):
        return self.taken >= self.settings.rests

    def step(self, variables, gradients, loss):
        value = self.settings.path[self.taken]
        self.taken += 1
        return {name: torch.full_like(one, value) for name, one in variables.items()}

    def reset(self, chosen):
        self.forgotten.append((self.taken, chosen.tolist()))

    def state(self):
        return {}

    def restore(self, state):
        pass


def walked(path, monkeypatch, **settings):
    """The answer of a search along a script, the losses at each pixel, and the steps themselves."""
    steps = []
    monkeypatch.setattr(Scripted, "start", lambda self, residuals: steps.append(Walk(self)) or steps[-1])
    objective = settings.pop("objective", L2())
    optimizer = Scripted(path=path, iterations=settings.pop("iterations", len(path)), **settings)
    search = problem(optimizer=optimizer, objective=objective, space=Pixels(init="grey", boxed=False), seeds=1)
    losses = [search.losses({"x": torch.full((2, 1, EXAMPLES, *SHAPE), value)})[:, 0] for value in path]
    return search.solve().guess, torch.stack(losses), steps


def test_the_best_point_that_was_looked_at_is_the_answer(monkeypatch):
    path = (0.9, 0.1, 0.4, 0.7, 0.0)
    guess, losses, steps = walked(path, monkeypatch)
    best = losses[:-1].min(0)  # where the last step leads is not evaluated
    assert len(steps) == 1
    for target in range(2):
        assert guess.loss[target] <= best.values[target] + 1e-6
        if guess.loss[target] == best.values[target]:  # else it was the start
            torch.testing.assert_close(guess.x[target], torch.full((EXAMPLES, *SHAPE), path[best.indices[target]]))
    assert torch.equal(guess.y, Y)
    assert steps[0].taken == 5


def test_a_search_ends_when_all_are_solved_or_settled(monkeypatch):
    path = (0.9, 0.1, 0.4, 0.7, 0.0)
    _, losses, _ = walked(path, monkeypatch)
    enough = losses[:3].max().item() + 1e-3  # the first look at the path is good enough for both
    _, _, steps = walked(path, monkeypatch, solved=enough)
    assert steps[0].taken <= 1
    _, _, steps = walked(path, monkeypatch, solved=1e-9, restarts=3)
    assert [one.taken for one in steps] == [5, 5, 5]
    _, _, steps = walked(path, monkeypatch, rests=2)
    assert steps[0].taken == 2
    # With stages a search is over only once the last of them has settled; each begins anew.
    _, _, steps = walked((0.5,) * 8, monkeypatch, objective=Robust(), rests=1)
    assert steps[0].taken == 7
    assert [taken for taken, _ in steps[0].forgotten] == [2, 4, 6]
    assert all(all(all(row) for row in chosen) for _, chosen in steps[0].forgotten)


@dataclass(frozen=True, kw_only=True)
class Rising(L2):
    """Each stage is a hundred more than the last."""

    stages = 2

    def __call__(self, dummy, seen, progress):
        return super().__call__(dummy, seen, progress) + 200 * progress


def test_the_answer_is_the_best_of_the_last_stage(monkeypatch):
    path = (0.3, 0.9, 0.1, 0.4, 0.7, 0.0)
    guess, losses, _ = walked(path, monkeypatch, objective=Rising())
    best = losses[2:5].min(0)  # what is looked at from the fourth iteration on
    torch.testing.assert_close(guess.loss, best.values + 100)
    for target in range(2):
        assert guess.x[target].unique().item() == pytest.approx(path[2 + best.indices[target]])


@pytest.mark.parametrize(("stages", "iterations"), [(4, 8), (4, 10), (1, 5), (4, 3)])
def test_stages_share_the_iterations_evenly(stages, iterations, monkeypatch):
    monkeypatch.setattr(L2, "stages", stages)
    search = problem(optimizer=Adam(iterations=iterations))
    told = [(search._next_stage(i), search.progress) for i in range(iterations)]
    wanted = [math.floor(i * stages / iterations) / stages for i in range(iterations)]
    assert [progress for _, progress in told] == wanted
    assert [changed for changed, _ in told] == [False, *(a != b for a, b in itertools.pairwise(wanted))]


def guessed(values, losses):
    x = torch.tensor(values).view(-1, 1, 1, 1, 1).expand(-1, EXAMPLES, *SHAPE).clone()
    guess = Guess(x, torch.zeros(len(values), EXAMPLES, dtype=torch.int64), torch.tensor(losses))
    return Found(guess, {"x": x[:, None].clone()}, torch.tensor(losses), {})


def test_targets_that_are_not_solved_are_tried_again_and_keep_their_best(monkeypatch):
    nan, asked = math.nan, []
    answers = [guessed([1.0, 2.0], [0.5, 0.05]), guessed([3.0], [0.7]), guessed([4.0], [0.3])]

    def attempt(self):
        asked.append([target[0].client for target in self.targets])
        return answers[len(asked) - 1]

    monkeypatch.setattr(Problem, "_attempt", attempt)
    optimizer = Adam(restarts=3, solved=0.1)
    found = problem(optimizer=optimizer).solve()
    assert asked == [[0, 1], [0], [0]]
    assert found.guess.loss.tolist() == pytest.approx([0.3, 0.05])
    assert found.distance.tolist() == pytest.approx([0.3, 0.05])
    assert found.guess.x[:, 0, 0, 0, 0].tolist() == [4.0, 2.0]
    assert found.variables["x"][:, 0, 0, 0, 0, 0].tolist() == [4.0, 2.0]
    asked.clear()
    answers[:] = [guessed([1.0, 2.0], [nan, 0.1]), guessed([3.0, 5.0], [0.7, 0.1])]
    found = problem(optimizer=dataclasses.replace(optimizer, restarts=2)).solve()
    assert asked == [[0, 1], [0, 1]]  # 0.1 is not below 0.1, nor is NaN
    assert found.guess.x[:, 0, 0, 0, 0].tolist() == [3.0, 2.0]  # what is only as good changes nothing
    asked.clear()
    answers[:] = [guessed([1.0, 2.0], [0.01, 0.01])]
    problem(optimizer=optimizer).solve()
    assert asked == [[0, 1]]


def test_only_what_diverged_starts_anew_from_its_own_stream():
    search, untouched = problem(), streams()
    first = search.draw()
    for stream in untouched:
        torch.randn((3, EXAMPLES, *SHAPE), generator=stream)
    broken = torch.tensor([[False, False, False], [True, False, True]])
    fresh = search._start_anew(broken, first)
    assert torch.equal(fresh["x"][~broken], first["x"][~broken])
    again = torch.randn((3, EXAMPLES, *SHAPE), generator=untouched[1])
    assert torch.equal(fresh["x"][1], torch.where(broken[1].view(3, 1, 1, 1, 1), again, first["x"][1]))
    assert torch.equal(search.streams[0].get_state(), untouched[0].get_state())


def test_a_search_of_three_steps_is_adam_by_hand():
    seen = [one[0] for one in targets(labels=Y[0])][:1]
    attack = adversary.build("matching(labels=given, space=pixels(boxed=False), optimizer=adam(iterations=4, lr=0.1))")
    guess = attack.run(seen, TASK, streams()[:1])
    x = torch.nn.Parameter(torch.randn((1, EXAMPLES, *SHAPE), generator=streams()[0])[0])
    theirs, best = torch.optim.Adam([x], lr=0.1), (math.inf, None)
    for _ in range(4):
        leaves = {name: value.clone().requires_grad_() for name, value in ROUNDS[0].items()}
        entropy = nn.functional.cross_entropy(torch.func.functional_call(MODEL, leaves, (x,)), Y[0])
        grads = torch.autograd.grad(entropy, list(leaves.values()), create_graph=True)
        loss = sum((ours - one).square().sum() for ours, one in zip(grads, seen[0].update.values(), strict=True))
        best = min(best, (loss.item(), x.detach().clone()), key=lambda pair: pair[0])
        theirs.zero_grad()
        loss.backward()
        theirs.step()
    torch.testing.assert_close(guess.x[0], best[1], rtol=1e-4, atol=1e-5)
    assert guess.loss.item() == pytest.approx(best[0], rel=1e-4)
    boxed = adversary.build("matching(labels=given, optimizer=adam(iterations=4, lr=0.1))").run(seen, TASK, streams()[:1])
    assert not torch.equal(boxed.x, guess.x)


def test_how_far_a_search_is_is_told_as_it_goes(monkeypatch):
    said = []
    monkeypatch.setattr(progress, "SECONDS", -1.0)
    token = progress.report.set(lambda *words: said.append(words))
    try:
        problem(optimizer=Adam(iterations=3)).solve()
    finally:
        progress.report.reset(token)
    assert said == [(0, 3), (1, 3), (2, 3)]


def test_a_checkpoint_is_of_all_that_the_answer_depends_on(tmp_path):
    def name(*changes, classes=Y, **settings):
        search = problem(classes=classes, **settings)
        for change in changes:
            change(search)
        return search._checkpoint()._path

    def other_stream(search):
        search.streams[1].manual_seed(5)

    def other_update(search):
        search.views[0].observed["1.bias"][1, 0] += 1

    with checkpoint.kept_in(tmp_path):
        first = name()
        assert name() == first
        others = [
            name(classes=Y.flip(0)),
            name(classes=None),
            name(other_stream),
            name(other_update),
            name(seeds=2),
            name(optimizer=Adam(lr=0.2)),
            name(knowledge={"repeats": True}),
            name(rounds=2),
        ]
    assert len({first, *others}) == 9
    assert name() is None  # nobody asked for one


def test_a_loss_that_is_not_finite_starts_anew_unless_the_steps_take_it_back(monkeypatch):
    for optimizer, resets in (("adam(iterations=3)", 1), ("lbfgs(iterations=3)", 0)):
        search = problem(optimizer=adversary.build(f"matching(optimizer={optimizer})").optimizer)
        real, asked = search.gradients, []

        def gradients(variables, real=real, asked=asked):
            loss, grads = real(variables)
            asked.append(variables)
            if len(asked) == 2:
                loss[0, 1] = math.nan
            return loss, grads

        search.gradients, fresh = gradients, []
        search._start_anew = lambda broken, variables, fresh=fresh: fresh.append(broken.tolist()) or variables
        guess = search.solve().guess
        assert fresh == [[[False, True, False], [False, False, False]]] * resets
        assert guess.loss.isfinite().all()
