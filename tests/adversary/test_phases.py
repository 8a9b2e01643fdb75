"""Searches one after the other, and controls of what looks like an example whatever an update says."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from adversary import AttackError
from adversary.base import Guess
from adversary.search.checkpoint import kept_in
from adversary.search.found import Found
from adversary.search.matching import Matching
from adversary.search.optimizers import LBFGS, Adam
from adversary.search.phases import Phase
from adversary.search.problem import Problem
from adversary.spaces import Pixels
from adversary.spaces.base import Free, Parametrisation
from fl_app.core.spec import SpecError
from helpers.tiny_search import TASK, X, Y, streams, targets

SEEN = [target[0] for target in targets()]
TOLD = [replace(one, knowledge=replace(one.knowledge, labels=y)) for one, y in zip(SEEN, Y, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Flat(Parametrisation):
    """One grey for each example."""

    generative: ClassVar[bool] = True

    def bind(self, task, classes=None, learned=None):
        return _Flat()


class _Flat(Free):
    def draw(self, seeds, examples, stream):
        return {"grey": torch.rand((seeds, examples, 1, 1, 1), generator=stream)}

    def inputs(self, z):
        return z["grey"].expand(-1, -1, -1, 1, 2, 2)


FLAT, THEN = Adam(iterations=60), LBFGS(iterations=40)


def ran(seen=TOLD, **settings):
    return Matching(labels="given", **settings).run(seen, TASK, streams()[: len(seen)])


def error(guess):
    return (guess.x - X).square().mean((1, 2, 3, 4))


def test_a_phase_goes_on_in_another_space_from_what_was_found():
    grey = ran(space=Flat(), optimizer=FLAT)
    both = ran(space=Flat(), optimizer=FLAT, phases=(Phase(space=Pixels(boxed=False), optimizer=THEN),))
    assert (both.loss < grey.loss).all()
    assert (error(both) < error(grey)).all()
    still = ran(space=Flat(), optimizer=FLAT, phases=(Phase(space=Pixels(), optimizer=Adam(iterations=1)),))
    torch.testing.assert_close(still.x, grey.x)  # before its first step it is where the first search ended


def test_of_several_phases_the_one_that_explains_best_answers():
    worse = Phase(space=Pixels(boxed=False), optimizer=Adam(iterations=3, lr=5.0))
    once = ran(space=Pixels(boxed=False), optimizer=THEN)
    twice = ran(space=Pixels(boxed=False), optimizer=THEN, phases=(worse, worse))
    assert (twice.loss <= once.loss).all()


def test_labels_that_are_searched_for_go_on_as_well():
    settings = {"space": Flat(), "optimizer": FLAT, "labels": "joint"}
    then = Phase(space=Pixels(boxed=False), optimizer=Adam(iterations=1))
    one = Matching(**settings).run(SEEN, TASK, streams())
    other = Matching(**settings, phases=(then,)).run(SEEN, TASK, streams())
    assert torch.equal(one.y, other.y)


def test_a_phase_is_the_same_alone_and_after_it_was_broken_off(tmp_path):
    settings = {"space": Flat(), "optimizer": FLAT, "phases": (Phase(space=Pixels(boxed=False), optimizer=THEN),)}
    together = ran(**settings)
    torch.testing.assert_close(ran(TOLD[:1], **settings).x, together.x[:1], rtol=1e-4, atol=1e-4)
    with kept_in(tmp_path):
        first = ran(**settings)
        kept = list(tmp_path.glob("*.safetensors"))
        assert len(kept) == 4  # a file for each of two searches, and the same of the control
        for path in kept[:2]:
            path.unlink()
        again = ran(**settings)
    assert torch.equal(first.x, together.x)
    assert torch.equal(again.x, together.x)


def test_a_space_that_cannot_continue_is_refused_before_anything_is_searched(monkeypatch):
    monkeypatch.setattr(Problem, "solve", lambda self: pytest.fail("it was searched before that was said"))
    with pytest.raises(AttackError, match="cannot start from another space"):
        ran(phases=(Phase(space=Flat(), optimizer=FLAT),))
    with pytest.raises(SpecError, match="leave restarts"):
        Phase(space=Pixels(), optimizer=Adam(restarts=2))


def test_phases_count_in_cost_and_are_shortened():
    attack = Matching(optimizer=FLAT, phases=(Phase(space=Pixels(), optimizer=THEN),))
    assert attack.cost(2, SEEN[0].rule) == 2 * (60 + 40)
    short = attack.shortened(5)
    assert (short.optimizer.iterations, short.phases[0].optimizer.iterations) == (5, 5)
    assert replace(attack, space=Flat()).cost(2, SEEN[0].rule) == 2 * attack.cost(2, SEEN[0].rule)  # with its control


def test_a_control_matches_the_same_numbers_in_no_order():
    guess = ran(space=Flat(), optimizer=FLAT)
    assert guess.control.shape == guess.x.shape
    assert not torch.allclose(guess.control, guess.x, atol=0.05)
    assert ran(space=Pixels(), optimizer=FLAT).control is None
    again = ran(space=Flat(), optimizer=FLAT)
    assert torch.equal(again.control, guess.control)


def test_where_better_takes_targets_by_what_is_unexplained():
    def found(value, distance):
        x = torch.full((2, 1, 1), value)
        return Found(Guess(x, torch.zeros(2, 1), torch.zeros(2)), {"z": x[:, None]}, torch.tensor(distance), {})

    one = found(1.0, [0.1, 0.4]).where_better(found(2.0, [0.2, 0.3]))
    assert one.guess.x.flatten().tolist() == [1.0, 2.0]
    assert one.distance.tolist() == pytest.approx([0.1, 0.3])
    assert one.variables["z"].flatten().tolist() == [1.0, 1.0]  # the next search goes on from the last one


def test_the_mean_of_all_seeds_goes_on_in_one_order():
    z = torch.rand(2, 3, 4, 1, 2, 2, generator=torch.Generator().manual_seed(5))
    order = torch.tensor([2, 0, 3, 1])
    z[:, 1], z[:, 2] = z[:, 0][:, order] + 0.01, z[:, 0].flip(1) - 0.04
    images = Pixels(boxed=False).bind(TASK)
    x = images.continued({"x": z}, images)["x"]
    assert x.shape == (2, 1, 4, 1, 2, 2)
    torch.testing.assert_close(x[:, 0], z[:, 0] - 0.01)
    apart = Pixels(boxed=False).bind(TASK, classes=torch.tensor([[0, 1, 2, 0]]).expand(2, -1))
    assert not torch.allclose(apart.continued({"x": z}, images)["x"][:, 0], z[:, 0] - 0.01, atol=1e-3)


def test_pooled_seeds_are_refined_together():
    settings = {"space": Pixels(boxed=False), "optimizer": Adam(iterations=5), "seeds": 3}
    phase = Phase(space=Pixels(boxed=False), optimizer=Adam(iterations=1), pooled=True)
    pooled = ran(**settings, phases=(phase,))
    single = ran(**settings)
    assert pooled.x.shape == single.x.shape
    assert (pooled.loss <= single.loss).all()  # where the mean explains less, the best seed answers
    longer = replace(phase, optimizer=LBFGS(iterations=40))
    assert (ran(**settings, phases=(longer,)).loss < single.loss).all()
