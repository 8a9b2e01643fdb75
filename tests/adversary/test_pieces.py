"""Objectives and priors, by numbers that can be checked by hand."""

import dataclasses
import math

import pytest
import torch

from adversary import AttackError
from adversary.entries import Ignoring, Masked
from adversary.objectives import L2, Cosine, Robust, Shell, cosine, robust, squared_l2
from adversary.priors import BatchNorm, Group, Norm, Prior, Scene, TotalVariation
from fl_app.core.observation import Knowledge
from fl_app.models.statistics import batchnorm_statistics
from helpers.attacks import digits, seen_of

DUMMY = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([2.0])}
SEEN = {"a": torch.tensor([0.0, 4.0]), "b": torch.tensor([-2.0])}


def test_distances_are_those_of_the_updates_as_one_vector():
    assert squared_l2(DUMMY, SEEN).item() == 1 + 4 + 16
    assert cosine(DUMMY, SEEN).item() == pytest.approx(1 - (8 - 4) / math.sqrt(9 * 20))
    assert L2()(DUMMY, SEEN, 0.5) == squared_l2(DUMMY, SEEN)
    assert Cosine()(DUMMY, SEEN, 0.5) == cosine(DUMMY, SEEN)
    assert Shell(eps=2.0)(DUMMY, SEEN, 0.5).item() == pytest.approx((math.sqrt(21) - 2) ** 2)
    assert cosine({"a": torch.zeros(2)}, {"a": torch.zeros(2)}).item() == 1  # not NaN
    assert Shell(eps=2.0)(SEEN, SEEN, 0.5).item() == 4


@pytest.mark.parametrize(("progress", "width"), [(0.0, math.inf), (0.25, 4.0), (0.5, 2.0), (0.75, 1.0), (0.99, 1.0)])
def test_the_robust_objective_trusts_fewer_entries_as_it_goes_on(progress, width):
    scale = 4 / 9  # inner product over the squared size of the dummy
    weighted = [{}, {}]
    for name, value in SEEN.items():
        residual = value - scale * DUMMY[name]
        root = 1 / torch.sqrt(1 + (residual / (width * residual.abs().mean())) ** 2)
        weighted[0][name], weighted[1][name] = root * DUMMY[name], root * value
    assert Robust()(DUMMY, SEEN, progress).item() == pytest.approx(cosine(*weighted).item())
    assert robust(DUMMY, SEEN).item() == pytest.approx(Robust()(DUMMY, SEEN, 0.75).item())
    assert robust(DUMMY, SEEN, math.inf).item() == pytest.approx(cosine(DUMMY, SEEN).item())


def test_what_was_not_sent_is_left_out_of_the_match():
    masked = Masked(objective=L2())
    assert masked(DUMMY, SEEN, 0.0).item() == 4 + 16  # the first entry was sent as zero
    assert (masked.stages, Masked(objective=Robust()).stages) == (1, 4)
    assert masked.kept(SEEN) == ["a", "b"]


def test_layers_are_left_out_by_words_in_their_names():
    update = {"net.conv.weight": torch.ones(4, 1, 3, 3), "net.fc.weight": torch.ones(10, 4), "net.fc.bias": torch.ones(10)}
    _, task = seen_of(*digits(1, 1))
    last = Ignoring(objective=Masked(objective=Robust()), layers=("last",)).fitted(update, task)
    assert (last.layers, last.kept(update), last.stages) == (("net.fc.",), ["net.conv.weight"], 4)
    assert Ignoring(objective=L2(), layers=("bias", "conv")).kept(update) == ["net.fc.weight"]
    assert Ignoring(objective=L2(), layers=("none",))(DUMMY, SEEN, 0.0) == 21
    assert Masked(objective=last).kept(update) == ["net.conv.weight"]
    with pytest.raises(AttackError, match=r"ignoring \['net'\] leaves nothing"):
        Ignoring(objective=L2(), layers=("net",)).fitted(update, task)


def test_penalties_of_pictures():
    x = torch.tensor([[0.0, 1.0], [0.0, 3.0]]).view(1, 1, 1, 1, 2, 2)
    both = torch.cat([x, x + 2], 1)  # two seeds
    assert TotalVariation(weight=0.5).bind(None)(both).tolist() == [[0.5 * (2 + 1), 0.5 * (2 + 1)]]
    assert Norm(weight=2.0).bind(None)(both).tolist() == [[2 * 10 / 4, 2 * (4 + 9 + 4 + 25) / 4]]
    assert Group(weight=3.0).bind(None)(both).tolist() == [[3.0, 3.0]]
    with pytest.raises(AttackError, match="neither a `penalty` nor a `bind`"):
        Prior(weight=1.0).bind(None)(x)


def test_the_batchnorm_prior_is_the_distance_of_the_statistics(rng):
    x, y = digits(2, 2)
    seen, task = seen_of(x, y, model_text="convnet(width=2)")
    with pytest.raises(AttackError, match="--grant statistics"):
        BatchNorm(weight=1.0).bind(Scene([(seen[0],)], task))
    told = [batchnorm_statistics(task.model, one.params, own) for one, own in zip(seen, x, strict=True)]
    moved = {name: value + 0.1 for name, value in seen[0].params.items()}
    targets = []
    for one, statistics in zip(seen, told, strict=True):
        granted = dataclasses.replace(one, knowledge=Knowledge(statistics=statistics))
        targets.append((granted, dataclasses.replace(granted, params=moved)))  # two rounds
    guess = torch.rand(2, 3, 2, 1, 28, 28, generator=rng)
    guess[0, 1] = x[0]
    found = BatchNorm(weight=0.5).bind(Scene(targets, task))(guess)
    assert found.shape == (2, 3)
    for target, seed in ((0, 0), (0, 1), (1, 2)):
        rounds = []
        for params in (seen[0].params, moved):
            ours = batchnorm_statistics(task.model, params, guess[target, seed])
            rounds.append(sum((ours[name] - told[target][name]).norm().item() for name in ours))
        assert (rounds[0] < 1e-3) == ((target, seed) == (0, 1))
        assert found[target, seed].item() == pytest.approx(0.5 * sum(rounds) / 2, rel=1e-3)
    alone, leaf = Scene([targets[0][:1]], task), x[0][None, None].clone().requires_grad_()
    assert torch.autograd.grad(BatchNorm(weight=1.0).bind(alone)(leaf).sum(), leaf)[0].isfinite().all()  # at no distance
