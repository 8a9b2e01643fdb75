"""Candidates that were read off an update: which of them are kept, and what stands for the rest."""

import pytest
import torch

from adversary.exact.found import GREY, Found, distinct, guess_of
from helpers.attacks import digits, seen_of


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
