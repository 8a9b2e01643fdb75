"""How much memory a step takes, and how many reconstructions therefore go at once."""

import pytest
import torch

from adversary import AttackError
from adversary.search import footprint
from adversary.search.matching import Matching
from adversary.search.optimizers import LBFGS, Adam
from adversary.search.problem import Problem
from fl_app.core import machine
from helpers.large_images import seen_of, smooth, task_of


def test_live_tensors_are_counted():
    with footprint.Live(1e9) as live:
        one = torch.zeros(1000)
        two = one + 1
        del one
        three = two.view(10, 100)  # no memory of its own
        four = torch.zeros(500)
    assert live.peak == 8000
    assert live.now == 6000
    del two, three, four
    assert live.now == 0


def test_a_step_that_does_not_fit_is_refused_before_the_search(monkeypatch):
    monkeypatch.setattr(machine, "memory", lambda: 10_000)
    assert footprint.bytes_of(lambda: torch.zeros(2000)) == 8000
    with pytest.raises(
        AttackError, match=r"one step of one reconstruction takes more than .* attack fewer or smaller examples"
    ):
        footprint.bytes_of(lambda: torch.zeros(2001))


def test_as_many_go_at_once_as_memory_has_room_for(monkeypatch):
    monkeypatch.setattr(machine, "memory", lambda: 32_000)
    assert [footprint.most_at_once(64, each) for each in (0, 100, 1000, 10_000, 10**9)] == [64, 64, 6, 1, 1]


@pytest.mark.parametrize("labels", ["given", "joint"])
def test_an_answer_does_not_depend_on_how_many_go_at_once(labels, monkeypatch):
    task, params = task_of("lenet")
    seen = seen_of(task, params, smooth(4))
    search = Matching(labels=labels, optimizer=Adam(iterations=5), seeds=2)
    sizes, plain = [], Problem.solve

    def noted(self):
        sizes.append(len(self.targets))
        return plain(self)

    monkeypatch.setattr(Problem, "solve", noted)
    together = search(seen, task, 0)
    monkeypatch.setattr("adversary.search.matching.SMALL", 0)
    measured = search(seen, task, 0)
    assert sizes == [4, 4]
    assert all(torch.equal(one, other) for one, other in zip(together[:3], measured[:3], strict=True))
    rng = torch.Generator()
    each = Problem(search, [(seen[0],)], task, [rng], None if labels == "joint" else [torch.tensor([0])]).footprint()
    monkeypatch.setattr(machine, "memory", lambda: int(2.5 * each * footprint.WASTE / footprint.SHARE))
    torch.testing.assert_close(search(seen, task, 0).x, together.x, atol=1e-3, rtol=1e-3)
    assert sizes[2:] == [2, 2]


def test_a_footprint_covers_a_step_and_what_the_steps_remember():
    task, params = task_of("convnet(width=8)")
    target = (seen_of(task, params, smooth(1))[0],)

    def of(**settings):
        return Problem(Matching(**settings), [target], task, [torch.Generator()], [torch.tensor([0])]).footprint()

    numbers = 3 * 32 * 32
    adam = of()
    assert adam > 4 * (sum(value.numel() for value in params.values()) + numbers)
    assert of(optimizer=LBFGS()) - adam == 4 * numbers * 98
    assert 1.9 < of(seeds=2) / adam < 2.1


def test_a_footprint_uses_no_draw():
    task, params = task_of("lenet")
    one, rng = seen_of(task, params, smooth(1))[0], torch.Generator().manual_seed(4)
    before = rng.get_state()
    Problem(Matching(), [(one,)], task, [rng], [torch.tensor([0])]).footprint()
    assert torch.equal(before, rng.get_state())
