"""Candidates that were read off an update: which of them are kept, and what stands for the rest."""

import pytest
import torch

from adversary.exact.found import GREY, Found, distinct, guess_of
from helpers.attacks import digits, seen_of
from strategies.crafts.base import alternating, edges
from strategies.crafts.fishing import Fishing


def test_each_candidate_is_kept_once_and_the_best_of_those_alike():
    x = torch.tensor([0.1, 0.1009, 0.5, 0.9]).view(4, 1, 1, 1).expand(4, 1, 3, 3)  # the first two are 0.0009 apart
    found = Found(x, torch.tensor([1.0, 3.0, 2.0, 0.5]))
    assert distinct(found, 0.001, 9).x[:, 0, 0, 0].tolist() == pytest.approx([0.1009, 0.5, 0.9])
    assert distinct(found, 0.0005, 9).evidence.tolist() == [3.0, 2.0, 1.0, 0.5]
    assert distinct(found, 0.001, 2).evidence.tolist() == [3.0, 2.0]


def test_what_was_not_found_is_grey_and_counted():
    seen, task = seen_of(*digits(1, 4))
    x = torch.rand(3, 1, 28, 28) * 3 - 1
    guess = guess_of([Found(x, torch.tensor([1.0, 3.0, 2.0]))], seen, task)
    assert guess.loss.tolist() == pytest.approx([0.25])
    assert torch.equal(guess.x[0, :3], x[[1, 2, 0]].clamp(0, 1))
    assert (guess.x[0, 3] == GREY).all()
    assert guess.y.shape == (1, 4)


def test_bins_are_filled_equally_and_none_is_without_width():
    values = torch.linspace(0, 1, 1001)
    assert edges(values, 4).tolist() == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=0.02)
    repeated = edges(torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]), 4)
    # Three of the quantiles are equal: each bin is a hundredth of an equal share wider than that.
    assert repeated.diff()[:3].tolist() == pytest.approx([1 / 400] * 3)
    assert alternating(3, 0.5).tolist() == [[0.5, -0.5, 0.5]]


def test_the_cut_moves_by_a_step_each_round_and_around():
    scores = torch.linspace(0, 1, 101, dtype=torch.float64)
    cuts = [float(Fishing(step=0.25)._cut(scores, server_round, 8)) for server_round in range(1, 6)]
    assert cuts == pytest.approx([0.25, 0.5, 0.75, 0.25, 0.5])
    assert float(Fishing()._cut(scores, 1, 8)) == pytest.approx(1 / 8)
    assert float(Fishing()._cut(scores, 2, 2)) == pytest.approx(2 / 3)
