"""The loss of a search against explicit loops over targets, seeds and rounds, on a network of a few numbers."""

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from adversary.base import Public
from adversary.priors import Norm, TotalVariation, total_variation
from adversary.search.matching import Matching
from adversary.search.observers import Observer
from adversary.search.problem import Problem
from adversary.search.variables import LABELS
from adversary.spaces import ClassGaussian, Pixels
from fl_app.core.local import LocalRule, local_update
from helpers.tiny_search import CLASSES, EXAMPLES, MODEL, ROUNDS, RULE, SHAPE, TASK, Y, problem, streams, targets


def distance(update, seen):
    return sum((update[name] - seen[name]).square().sum() for name in seen)


def test_losses_are_those_of_each_reconstruction_by_itself():
    search = problem(rounds=2, priors=(TotalVariation(weight=0.5), Norm(weight=0.0)))
    drawn = search.draw()
    assert {name: value.shape for name, value in drawn.items()} == {"x": (2, 3, EXAMPLES, *SHAPE)}
    again = torch.randn((3, EXAMPLES, *SHAPE), generator=streams()[1])
    assert torch.equal(drawn["x"][1], again)  # of the second target's own stream
    found, left = search.losses(drawn), search.residuals(drawn)
    for target in range(2):
        for seed in range(3):
            x = drawn["x"][target, seed]
            parts = [
                distance(local_update(MODEL, params, x, Y[target], RULE), seen.update)
                for params, seen in zip(ROUNDS, search.targets[target], strict=True)
            ]
            match, tv = sum(parts) / 2, total_variation(x[None, None])[0, 0]
            torch.testing.assert_close(found[target, seed], match + 0.5 * tv)
            squares = TotalVariation(weight=1.0).residuals(x[None, None])[0, 0].square().sum()
            torch.testing.assert_close(left[target, seed].square().sum(), match + 0.5 * squares)
    loss, gradients = search.gradients(drawn)
    leaf = drawn["x"].clone().requires_grad_()
    torch.testing.assert_close(loss, found)
    torch.testing.assert_close(gradients["x"], torch.autograd.grad(search.losses({"x": leaf}).sum(), leaf)[0])
    assert not loss.requires_grad


def test_labels_that_are_searched_for_are_probabilities():
    search = problem(classes=None, labels="joint", seeds=1)
    drawn = search.draw()
    assert drawn[LABELS].shape == (2, 1, EXAMPLES, CLASSES)
    stream = streams()[0]
    torch.randn((1, EXAMPLES, *SHAPE), generator=stream)
    assert torch.equal(drawn[LABELS][0], torch.randn((1, EXAMPLES, CLASSES), generator=stream))
    for target in range(2):
        update = local_update(MODEL, ROUNDS[0], drawn["x"][target, 0], drawn[LABELS][target, 0].softmax(-1), RULE)
        wanted = distance(update, search.targets[target][0].update)
        torch.testing.assert_close(search.losses(drawn)[target, 0], wanted)


def test_a_space_that_was_learned_holds_something_against_its_variables():
    public = Public(torch.rand(60, *SHAPE, generator=torch.Generator().manual_seed(0)), torch.arange(60) % CLASSES)
    space = ClassGaussian(components=2)
    attack = Matching(space=space, seeds=2).taught(space.learn(public, TASK))
    search = Problem(attack, targets(), TASK, streams(), Y)
    drawn = {name: value + 0.3 for name, value in search.draw().items()}
    bare = Problem(dataclasses.replace(attack, space=Pixels()), targets(), TASK, streams(), Y)
    inputs = {"x": search.space.inputs(drawn)}
    wanted = bare.losses(inputs) + search.space.penalty(drawn)
    torch.testing.assert_close(search.losses(drawn), wanted)
    torch.testing.assert_close(search.residuals(drawn).square().sum(-1), wanted)


@dataclass(frozen=True, kw_only=True)
class Shifted(Observer):
    """Weights that a client moved by something unknown, and an update that it scaled."""

    start: float
    factor: float = 1.0

    def draw(self, seen, task):
        return {"shift": torch.tensor([self.start])}

    def project(self, unknown):
        return {name: value.clamp(0, 1) for name, value in unknown.items()}

    def weights(self, params, unknown, progress):
        return {name: value + unknown["shift"] for name, value in params.items()}

    def sent(self, update, unknown):
        return {name: self.factor * value for name, value in update.items()}


def test_what_is_not_known_of_a_defense_is_searched_for_by_each_observer():
    search = problem(observers=(Shifted(start=0.2), Shifted(start=3.0, factor=2.0)), seeds=2)
    drawn = search.draw()
    assert {name: value.shape for name, value in drawn.items() if "/" in name} == {"0/shift": (2, 2, 1), "1/shift": (2, 2, 1)}
    drawn["0/shift"][1, 0] = 0.7
    moved = {name: value + 3.7 for name, value in ROUNDS[0].items()}
    update = local_update(MODEL, moved, drawn["x"][1, 0], Y[1], RULE)
    wanted = distance({name: 2 * value for name, value in update.items()}, search.targets[1][0].update)
    torch.testing.assert_close(search.losses(drawn)[1, 0], wanted)
    projected = search._projected(drawn)
    assert (projected["0/shift"][1, 0].item(), projected["1/shift"][1, 0].item()) == (pytest.approx(0.7), 1.0)
    torch.testing.assert_close(projected["x"], drawn["x"].clamp(0, 1))
    assert search.gradients(drawn)[1]["1/shift"].shape == (2, 2, 1)


@dataclass(frozen=True, kw_only=True)
class Fixed(Observer):
    """An update that does not come of the client's rule, and a gradient and a model of its own."""

    def update(self, local, unknown):
        return {name: torch.full_like(value, 0.5) + 0 * local.x.sum() for name, value in local.observed.items()}


@dataclass(frozen=True, kw_only=True)
class Halved(Observer):
    def model(self, model, seen, task):
        return nn.Sequential(nn.Flatten(), model[1], nn.Softplus())

    def gradient(self, gradient, seen):
        return lambda step: {name: value / 2 for name, value in gradient(step).items()}


def test_an_observer_changes_the_model_the_gradient_or_the_whole_update():
    fixed = problem(observers=(Fixed(), Shifted(start=0.0, factor=3.0)))
    sent = {name: torch.full_like(value, 1.5) for name, value in ROUNDS[0].items()}
    wanted = [distance(sent, one[0].update) for one in targets()]
    torch.testing.assert_close(fixed.losses(fixed.draw())[:, 0], torch.stack(wanted))
    halved = problem(observers=(Halved(), Halved()))
    drawn = halved.draw()
    update = local_update(halved.model, ROUNDS[0], drawn["x"][0, 1], Y[0], RULE)
    wanted = distance({name: value / 4 for name, value in update.items()}, halved.targets[0][0].update)
    torch.testing.assert_close(halved.losses(drawn)[0, 1], wanted)


def test_examples_come_in_the_order_that_was_granted():
    rule = LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1, examples=EXAMPLES)
    order = torch.tensor([[1], [0]])
    search = problem(rule=rule, knowledge={"order": order})
    drawn = search.draw()
    turned = local_update(MODEL, ROUNDS[0], drawn["x"][0, 2].flip(0), Y[0].flip(0), rule)
    torch.testing.assert_close(search.losses(drawn)[0, 2], distance(turned, search.targets[0][0].update))
