"""What every attack does around its own `run`: checks, draws, and what it learned."""

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from adversary import AttackError
from adversary.base import LEAST_PUBLIC, Attack, Belief, Facts, Guess, Other, Public
from fl_app.core.local import LocalRule
from fl_app.core.observation import Candidates, Knowledge, Observation, Task
from fl_app.core.seeds import generator
from fl_app.core.space import Images

TASK = Task(nn.Identity(), Images((2,)), 3)
PUBLIC = Public(torch.rand(5, 2, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 3)
FIRST = Observation(
    params={"w": torch.zeros(2)},
    update={"w": torch.ones(2)},
    rule=LocalRule(batch_size=4),
    num_examples=4,
    server_round=3,
    client=1,
)


@dataclass(frozen=True, kw_only=True)
class Answering(Attack):
    """Answers with these shapes, drawn between -1 and 2."""

    x: tuple[int, ...] = (1, 4, 2)
    y: tuple[int, ...] = (1, 4)
    loss: tuple[int, ...] = (1,)

    def run(self, seen, task, streams):
        x = 3 * torch.rand(self.x, generator=streams[0], requires_grad=True) - 1
        return Guess(x, torch.zeros(self.y, dtype=torch.int64), torch.zeros(self.loss, requires_grad=True))


def test_an_answer_lies_in_the_space_and_depends_on_seed_round_and_client():
    answer = Answering()([FIRST], TASK, 7)
    drawn = 3 * torch.rand((1, 4, 2), generator=generator(7, 3, 1)) - 1
    assert torch.equal(answer.x, drawn.clamp(0, 1))
    assert (answer.x.requires_grad, answer.loss.requires_grad) == (False, False)
    for other in ({"server_round": 4}, {"client": 2}):
        assert not torch.equal(Answering()([dataclasses.replace(FIRST, **other)], TASK, 7).x, answer.x)


def test_an_aggregate_over_different_weights_is_refused_unless_the_attack_takes_it():
    mixed = dataclasses.replace(FIRST, sent={1: {"w": torch.ones(2)}})
    with pytest.raises(AttackError, match="clients were sent different weights"):
        Answering()([mixed], TASK, 7)
    assert type("Takes", (Answering,), {"different_weights": True})()([mixed], TASK, 7).x.shape == (1, 4, 2)


@pytest.mark.parametrize(
    "wrong", [{"x": (1, 3, 2)}, {"x": (2, 4, 2)}, {"y": (1, 3)}, {"y": (4,)}, {"loss": (2,)}, {"loss": ()}]
)
def test_an_answer_of_another_shape_is_a_bug(wrong):
    with pytest.raises(AttackError, match=r"not \(1, 4, 2\): this is a bug in it"):
        Answering(**wrong)([FIRST], TASK, 7)


@pytest.mark.parametrize(
    "other",
    [
        {"rule": LocalRule(batch_size=5)},
        {"num_examples": 5},
        {"visibility": "aggregate"},
        {"knowledge": Knowledge(defense="prune")},
        {"knowledge": Knowledge(repeats=True)},
        {"update": {"v": torch.ones(2)}},
        {"update": {"w": torch.ones(3)}},
    ],
    ids=str,
)
def test_observations_that_differ_are_attacked_in_groups(other):
    with pytest.raises(AttackError, match="attack them in groups"):
        Answering(x=(2, 4, 2), y=(2, 4), loss=(2,))([FIRST, dataclasses.replace(FIRST, **other)], TASK, 7)


def test_nothing_cannot_be_attacked():
    with pytest.raises(AttackError, match="nothing to attack"):
        Answering()([], TASK, 7)


def test_what_was_granted_is_named():
    everything = Knowledge(
        labels=torch.zeros(1),
        defense="prune",
        statistics={"bn": torch.zeros(2, 1)},
        order=torch.zeros(1, 1),
        repeats=True,
        evaluator=True,
        public=True,
        candidates=Candidates(torch.zeros(1), torch.zeros(1)),
    )
    fields = ("labels", "defense", "statistics", "order", "repeats", "evaluator", "public", "candidates")
    names = ("labels", "defense", "bn statistics", "batch order", "repeated examples", "evaluation network")
    names += ("public examples", "candidates")
    assert everything.ledger == names
    assert Knowledge().ledger == ()
    for name, field in zip(names, fields, strict=True):
        assert Knowledge(**{field: getattr(everything, field)}).ledger == (name,)


@dataclass(frozen=True, kw_only=True)
class HandingOn(Answering):
    """Also hands on what a member of it found, for so many targets."""

    targets: int = 1
    other_x: tuple[int, ...] = (4, 2)
    other_y: tuple[int, ...] = (4,)

    def run(self, seen, task, streams):
        found = Other(torch.full(self.other_x, 1.5, requires_grad=True), torch.zeros(self.other_y, dtype=torch.int64))
        return super().run(seen, task, streams)._replace(others=[{"a": found}] * self.targets, remark="said")


def test_what_members_found_is_handed_on_in_the_space_for_all_targets_or_none():
    guess = HandingOn()([FIRST], TASK, 7)
    assert guess.remark == "said"
    (found,) = guess.others
    assert found["a"].x.tolist() == [[1.0, 1.0]] * 4
    assert not found["a"].x.requires_grad
    assert HandingOn(targets=0)([FIRST], TASK, 7).others == []
    with pytest.raises(AttackError, match="others for 2 of 1 targets"):
        HandingOn(targets=2)([FIRST], TASK, 7)
    for wrong in ({"other_x": (3, 2)}, {"other_y": (3,)}, {"other_y": (4, 1)}):
        with pytest.raises(AttackError, match=r"a answered with the shape .*: this is a bug in it"):
            HandingOn(**wrong)([FIRST], TASK, 7)


@dataclass(frozen=True, kw_only=True)
class Believing(Attack):
    """Believes what it is told."""

    scores: tuple[tuple[float, ...], ...] = ((0.1, 0.9),)

    def run(self, seen, task, streams):
        return Belief(torch.tensor(self.scores, requires_grad=True))


def test_beliefs_are_finite_numbers_per_target_and_candidate():
    assert Believing()([FIRST], TASK, 7).scores.tolist() == [pytest.approx([0.1, 0.9])]
    assert not Believing()([FIRST], TASK, 7).scores.requires_grad
    for wrong in (((0.1,), (0.2,)), ((float("nan"), 0.1),), ((float("inf"), 0.1),)):
        with pytest.raises(AttackError, match="not finite numbers per target"):
            Believing(scores=wrong)([FIRST], TASK, 7)


LESSONS = []


@dataclass(frozen=True, kw_only=True)
class Learning(Answering):
    """Counts its lessons."""

    trained = True
    factor: float = 2.0

    def learn(self, task, seen, public, rng):
        LESSONS.append(seen.server_round)
        return {"mean": self.factor * public.x.mean(0), "draw": torch.rand(1, generator=rng)}


@dataclass(frozen=True, kw_only=True)
class LearningOfExamples(Learning):
    """What it learns does not depend on the round."""

    at_weights = False


@pytest.mark.parametrize("kind", [Learning, LearningOfExamples])
def test_what_was_learned_is_kept_by_what_it_was_made_of(tmp_path, kind):
    LESSONS.clear()
    attack = kind()
    assert attack.learned == {}
    prepared = attack.prepare(TASK, FIRST, PUBLIC, 7, tmp_path / "kept")
    torch.testing.assert_close(prepared.learned["mean"], 2 * PUBLIC.x.mean(0))
    torch.testing.assert_close(prepared.learned["draw"], torch.rand(1, generator=generator(7, "learn", 3)))
    assert attack.learned == {}  # the attack itself has learned nothing
    attack.prepare(TASK, FIRST, PUBLIC, 7, tmp_path / "kept")
    assert LESSONS == [3]
    again = {
        "weights": (dataclasses.replace(FIRST, params={"w": torch.ones(2)}), PUBLIC, 7),
        "rule": (dataclasses.replace(FIRST, rule=LocalRule(batch_size=5)), PUBLIC, 7),
        "examples": (dataclasses.replace(FIRST, num_examples=5), PUBLIC, 7),
        "defense": (dataclasses.replace(FIRST, knowledge=Knowledge(defense="prune")), PUBLIC, 7),
        "seed": (FIRST, PUBLIC, 8),
    }
    for number, (seen, public, seed) in enumerate(again.values(), 2):
        attack.prepare(TASK, seen, public, seed, tmp_path / "kept")
        assert len(LESSONS) == (number if kind is Learning else 1)
    before = len(LESSONS)
    attack.prepare(TASK, FIRST, PUBLIC._replace(x=1 - PUBLIC.x), 7, tmp_path / "kept")
    kind(factor=3.0).prepare(TASK, FIRST, PUBLIC, 7, tmp_path / "kept")
    assert len(LESSONS) == before + 2


@dataclass(frozen=True, kw_only=True)
class LearningOfNetworks(Learning):
    """What it learns depends on the network and on draws."""

    at_weights = False
    at_model = True


def test_what_depends_on_the_network_alone_is_learned_again_for_another_one(tmp_path):
    LESSONS.clear()
    wide = dataclasses.replace(FIRST, params={"w": torch.zeros(3)})
    for seen, task, seed, lessons in (
        (FIRST, TASK, 7, 1),
        (dataclasses.replace(FIRST, params={"w": torch.ones(2)}, server_round=9), TASK, 7, 1),
        (FIRST, dataclasses.replace(TASK, model=nn.Flatten()), 7, 2),
        (wide, TASK, 7, 3),
        (FIRST, TASK, 8, 4),
    ):
        LearningOfNetworks().prepare(task, seen, PUBLIC, seed, tmp_path)
        assert len(LESSONS) == lessons


def test_what_an_attack_says_of_itself_unless_it_knows_better():
    attack = Answering()
    assert attack.cost(3, LocalRule(kind="delta", batch_size=1, steps=5, lr=0.1)) == 15
    assert (attack.shortened(3), attack.by_client, attack.trained, attack.at_weights) == (None, False, False, True)
    assert attack.informed("prune", Facts()) == []
    assert [Facts(public=number).enough for number in (LEAST_PUBLIC - 1, LEAST_PUBLIC)] == [False, True]
    assert LEAST_PUBLIC == 500
