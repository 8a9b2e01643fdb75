"""The search for rows: when it looks for a second time, for whom, and which of both answers it gives."""

from dataclasses import replace

import pytest
import torch

from adversary import Facts, Guess, labels
from adversary.presets import RowSearch
from adversary.search.matching import Matching
from helpers.rows import ROWS, scene

FOUND = torch.full((3, 4, 8), 0.25)
"""What the first search finds."""
FIRST = torch.tensor([[0, 0, 0, 1], [1, 0, 1, 0], [1, 1, 1, 1]])
AGAIN = {0: torch.tensor([0, 1, 1, 1]), 1: torch.tensor([0, 0, 1, 1]), 2: torch.tensor([0, 1, 1, 1])}
"""What is counted by it: other classes of the first and the last target, the same in another order of the second."""


@pytest.fixture
def searches(monkeypatch):
    """Scripted searches: the second is better for the first target alone. -> (labels, clients, what they were told, streams)"""
    asked = []

    def run(self, seen, task, streams):
        told = [one.knowledge.labels for one in seen]
        asked.append((self.labels, [one.client for one in seen], told, [one.initial_seed() for one in streams]))
        if self.labels == "count":
            return Guess(FOUND.clone()[: len(seen)], FIRST.clone()[: len(seen)], torch.tensor([0.5, 0.5, 0.5])[: len(seen)])
        return Guess(torch.full((len(seen), 4, 8), 0.75), torch.stack(told), torch.tensor([0.1, 0.5])[: len(seen)])

    def again(rule, one, task, x):
        if rule == "given" or one.num_examples == 1:
            return []
        assert torch.equal(x, ROWS.clamp(FOUND[one.client])), "counted by rows, not by what lies between them"
        return [AGAIN[one.client]]

    monkeypatch.setattr(Matching, "_searched", run)
    monkeypatch.setattr(labels, "again", again)
    return asked


def test_targets_with_other_classes_are_searched_for_again_and_the_better_answer_is_given(searches):
    _, _, seen, task = scene(4, targets=3)
    guess = RowSearch().run(seen, task, [torch.Generator().manual_seed(10 + i) for i in range(3)])
    first, second = searches
    assert first == ("count", [0, 1, 2], [None] * 3, [10, 11, 12])
    assert second[:2] == ("given", [0, 2])
    assert [one.tolist() for one in second[2]] == [AGAIN[0].tolist(), AGAIN[2].tolist()]
    assert second[3] == [10, 12]
    assert guess.x[:, 0, 0].tolist() == [0.75, 0.25, 0.25]  # as good as before is not better
    assert guess.y.tolist() == [AGAIN[0].tolist(), *FIRST[1:].tolist()]
    assert guess.loss.tolist() == pytest.approx([0.1, 0.5, 0.5])


def test_where_the_classes_are_the_same_nobody_searches_again(searches, monkeypatch):
    _, _, seen, task = scene(4, targets=3)
    monkeypatch.setitem(AGAIN, 0, FIRST[0].flip(0))
    RowSearch().run(seen[:2], task, [torch.Generator()] * 2)
    assert len(searches) == 1


def test_who_was_told_the_classes_or_has_one_row_counts_nothing(searches):
    _, _, seen, task = scene(1, targets=2)
    RowSearch().run(seen, task, [torch.Generator()] * 2)
    assert len(searches) == 1
    _, _, seen, task = scene(4, targets=2)
    told = [replace(one, knowledge=replace(one.knowledge, labels=AGAIN[0])) for one in seen]
    RowSearch(labels="given").run(told, task, [torch.Generator()] * 2)
    assert len(searches) == 2


def test_who_knows_the_defense_counts_again_too():
    for one in RowSearch().informed("dp_sgd(noise=0.1)", Facts(examples=4)):
        assert one.attack is None or one.attack.recounts == 1
