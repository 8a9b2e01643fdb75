"""`standard`: who takes part, what is learned, when it stops."""

import time
from dataclasses import dataclass, replace

import pytest
import torch

from adversary import Attack, AttackError, Facts, Guess, Public
from adversary.evidence import Evidence
from adversary.learned.ridge import Ridge
from adversary.presets import CosineLBFGS, GaussNewton, InvertingGradients
from adversary.search import progress
from adversary.search.progress import out_of_time, within
from adversary.standard import CLASS_MEAN, EXACT, Standard
from fl_app import data
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Knowledge
from fl_app.core.seeds import generator
from helpers.attacks import digits, psnr, seen_of


def public():
    return Public(*data.load("mnist").test.at(slice(0, 600)))


def test_an_undefended_update_is_explained_by_the_first_member(tmp_path):
    x, y = digits(1, 1)
    seen, task = seen_of(x, y)
    asked = []

    class Counting(Standard):
        def members(self, seen, task, public):
            found = super().members(seen, task, public)
            asked.append(list(found))
            return {"gauss_newton": found["gauss_newton"], "broken": Standard(labels="given")}

    guess = Counting().prepare(task, seen[0], public(), 0, tmp_path)(seen, task, 0)
    assert psnr(guess.x, x).item() > 30
    assert guess.loss.item() < 1e-3
    assert asked[0] == [*EXACT, "lbfgs", "gauss_newton", "ci_net_lbfgs", "signed adam"]
    assert list(guess.others[0]) == [CLASS_MEAN, "gauss_newton"], "what was found is handed on, also what was not chosen"
    assert torch.equal(guess.others[0]["gauss_newton"].x, guess.x[0])
    assert guess.remark == ""


def test_who_knows_the_defense_takes_part_once():
    seen, task = seen_of(*digits(1, 1))
    told = replace(seen[0], knowledge=Knowledge(defense="gradient_dropout(p=0.6)"))
    members = Standard().members(told, task, 600)
    assert len(members) == len(set(members.values())) >= 3
    assert any(attack.trained for attack in members.values())
    assert not any(attack.trained for attack in Standard().members(told, task, 0).values())
    assert Standard().informed("none", Facts()) == []
    assert Standard().informed("sign", Facts(rounds=3, repeats=True))[0].attack == Standard(rounds=3)


def test_gauss_newton_is_for_smooth_networks():
    for model, expected in (("lenet", True), ("lenet5", False), ("lenet(activation='relu')", False)):
        seen, task = seen_of(*digits(1, 1), model_text=model)
        assert ("gauss_newton" in Standard().members(seen[0], task, 0)) is expected


def test_what_standard_learns_by_hand():
    """The mean image of each class, that of all for a class that is not there, and how rough 99 % of examples are at most."""
    seen, task = seen_of(*digits(1, 1))
    x, y, _ = public()
    known = Public(x[y != 7], y[y != 7])
    learned = Standard().learn(task, replace(seen[0], num_examples=1), known, torch.Generator().manual_seed(0))
    torch.testing.assert_close(learned["means"][3], x[y == 3].mean(0))
    torch.testing.assert_close(learned["means"][7], known.x.mean(0))
    rough = torch.stack([one[0].diff(dim=0).abs().mean() + one[0].diff(dim=1).abs().mean() for one in known.x])
    assert learned["variation"].item() == pytest.approx(rough.quantile(0.99).item(), rel=1e-3)
    assert learned["public"] == len(known.x)


ASKED: list[tuple] = []
TRUTH: dict[int, tuple] = {}


@dataclass(frozen=True, kw_only=True)
class Knows(Attack):
    """Answers with the truth about some clients, with grey about others, and notes what it was given."""

    clients: tuple[int, ...]

    def run(self, seen, task, streams):
        ASKED.append(([one.client for one in seen], self.learned, [one.initial_seed() for one in streams]))
        grey = torch.full((1, *task.space.shape), 0.5)
        x = [TRUTH[one.client][0] if one.client in self.clients else grey for one in seen]
        return Guess(torch.stack(x), torch.stack([TRUTH[one.client][1] for one in seen]), torch.zeros(len(seen)))


@dataclass(frozen=True, kw_only=True)
class Three(Standard):
    def members(self, seen, task, public):
        return {"one": Knows(clients=(1,)), "none": Knows(clients=()), "both": Knows(clients=(0, 2)), "late": Knows(clients=())}


def test_who_is_asked_about_which_targets_and_with_what():
    x, y = digits(3, 1)
    seen, task = seen_of(x, y, model_text="linear")
    ASKED.clear()
    TRUTH.update({i: (x[i], y[i]) for i in range(3)})
    attack = Three().taught(
        {
            "one/map": torch.ones(1),
            "both/map": torch.zeros(1),
            "means": x[0].expand(10, 1, 28, 28),
            "variation": torch.tensor(9.0),
            "public": torch.tensor(0),
        }
    )
    guess = attack(seen, task, 4)
    assert [clients for clients, _, _ in ASKED] == [[0, 1, 2], [0, 2], [0, 2]], "about what nobody has explained yet"
    assert [learned for _, learned, _ in ASKED] == [{"map": torch.ones(1)}, {}, {"map": torch.zeros(1)}]
    own = [generator(4, one.server_round, one.client).initial_seed() for one in seen]
    assert ASKED[1][2] == [generator(seed, "none").initial_seed() for seed in (own[0], own[2])]
    torch.testing.assert_close(guess.x, x)
    asked = [CLASS_MEAN, "one", "none", "both"]
    assert [list(one) for one in guess.others] == [asked, [CLASS_MEAN, "one"], asked]
    ASKED.clear()
    Three(rounds=2)(seen, task, 4)
    assert [clients for clients, _, _ in ASKED] == [[0, 1, 2]] * 4, "rounds of a client are asked about together"


def test_rounds_of_a_client_that_one_of_them_explains_are_done():
    x, y = digits(3, 1)
    seen, task = seen_of(x, y, model_text="linear")
    TRUTH.update({i: (x[i], y[i]) for i in range(3)})
    ASKED.clear()
    Three()([replace(seen[1], server_round=one) for one in (1, 2)] + seen[:1], task, 0)
    assert [clients for clients, _, _ in ASKED] == [[1, 1, 0], [0], [0]]


def test_who_learns_from_public_examples_is_not_asked_without():
    seen, task = seen_of(*digits(1, 1), model_text="linear")
    stream = [torch.Generator()]
    with pytest.raises(AttackError, match="learns from public examples"):
        Standard().ask("ridge", Ridge(), seen, task, stream)
    assert Standard().ask("readout", EXACT["readout"]("count"), seen, task, stream).loss == 0


@pytest.mark.parametrize(
    ("labels", "knowledge", "rule"),
    [
        ("count", Knowledge(), "count"),
        ("joint", Knowledge(), "count"),
        ("count", Knowledge(defense="sign"), "rows"),
        ("given", Knowledge(defense="sign", labels=torch.tensor([7, 3])), "given"),
    ],
)
def test_the_class_mean_is_that_of_the_classes_inferred(labels, knowledge, rule, monkeypatch):
    x, y = digits(1, 2)
    seen, task = seen_of(x, y, model_text="linear", knowledge=knowledge)
    means = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    asked = []

    def inferred(given, one, told, rng):
        asked.append((given, one, told, rng.initial_seed()))
        return torch.tensor([2, 5])

    monkeypatch.setattr("adversary.standard.infer", inferred)
    (found,) = (
        Standard(labels=labels)
        .taught({"means": means})
        ._class_means([Evidence.known_to([], one, task) for one in seen], [torch.Generator().manual_seed(3)])
    )
    assert asked == [(rule, seen[0], task, generator(3, CLASS_MEAN).initial_seed())]
    assert torch.equal(found.x, means[[2, 5]])
    update = local_update(task.model, seen[0].params, means[[2, 5]], torch.tensor([2, 5]), seen[0].rule)
    flat = [torch.cat([value.flatten() for value in one.values()]) for one in (update, seen[0].update)]
    assert found.distance == pytest.approx(1 - torch.cosine_similarity(*flat, dim=0).item(), abs=1e-5)
    assert not found.certain
    assert not found.likely


def test_standard_takes_as_long_as_its_searches():
    rule = LocalRule(batch_size=2)
    parts = (GaussNewton(), CosineLBFGS(iterations=500), InvertingGradients(iterations=500))
    assert Standard().cost(2, rule) == sum(one.cost(2, rule) for one in parts)
    assert Standard(labels="given").shortened(7) == CosineLBFGS(labels="given", iterations=7)
    assert (Standard().by_client, Standard(rounds=2).by_client) == (False, True)


def test_nothing_that_can_be_run_is_an_error():
    seen, task = seen_of(*digits(1, 1))
    with pytest.raises(AttackError, match="no member of standard"):
        Standard(labels="given")(seen, task, 0)


def test_whoever_has_not_begun_in_time_is_left_out(monkeypatch):
    seen, task = seen_of(*digits(1, 1))
    clock = iter([0.0, *[1e9] * 10])
    monkeypatch.setattr("adversary.standard.time.monotonic", lambda: next(clock))
    with pytest.raises(AttackError, match="no member of standard"):
        Standard(minutes=0.1)(seen, task, 0)


def test_a_search_ends_when_its_share_of_the_time_is_used_and_that_is_said(caplog):
    seen, task = seen_of(*digits(1, 1))

    class Long(Standard):
        def members(self, seen, task, public):
            return {name: CosineLBFGS(iterations=10**6, tv=tv) for name, tv in (("one", 1e-3), ("two", 1e-2))}

    began = time.monotonic()
    guess = Long(minutes=0.6 / 60)(seen, task, 0)
    assert time.monotonic() - began < 3
    assert guess.remark == "ended by the clock: one, two"
    assert "another machine may answer otherwise" in caplog.text
    assert all(bool(one.x.isfinite().all()) for one in guess.others[0].values())


def test_a_limit_within_a_limit_ends_with_the_outer_one():
    with within(-1.0) as outer:
        with within(100.0) as inner:
            assert out_of_time()
        assert inner.cut
        assert outer.cut
    with within(100.0) as outer:
        with within(-1.0) as inner:
            assert out_of_time()
        assert not outer.cut, "the outer one had time left"
        assert not out_of_time()
    assert not out_of_time(), "nobody asks without a limit"


@dataclass(frozen=True, kw_only=True)
class Learns(Attack):
    """Learns one number, and answers with grey."""

    trained = True
    number: int

    def learn(self, task, seen, public, rng):
        return {"number": torch.tensor(self.number)}

    def run(self, seen, task, streams):
        LIMITS.append(left())
        x = torch.full((len(seen), seen[0].num_examples, *task.space.shape), 0.5)
        return Guess(x, torch.zeros(x.shape[:2], dtype=torch.int64), torch.zeros(len(seen)))


LIMITS: list[float] = []


def left():
    """Seconds that the search which runs now has left."""
    return progress._limit.get().until - time.monotonic()


@dataclass(frozen=True, kw_only=True)
class Learning(Standard):
    def members(self, seen, task, public):
        return {"a": Learns(number=3), "b": Learns(number=5)}


def test_what_members_learn_is_kept_by_their_names():
    seen, task = seen_of(*digits(1, 1))
    learned = Learning().learn(task, seen[0], public(), torch.Generator())
    assert (learned["a/number"], learned["b/number"]) == (3, 5)


def test_the_time_that_is_left_is_shared_by_those_who_are_to_come():
    seen, task = seen_of(*digits(2, 1))
    attack = Learning(minutes=1.0)
    LIMITS.clear()
    attack.taught(attack.learn(task, seen[0], public(), torch.Generator()))(seen, task, 0)
    assert [pytest.approx(60, abs=2), pytest.approx(120, abs=2)] == LIMITS, "two targets have two minutes"


def test_a_target_whose_defense_is_known_may_be_explained_less():
    """Grey looks like an example and explains nothing: who was told of no defense rather takes the class mean."""
    x, y = digits(1, 1)
    for defense in (None, "sign"):
        seen, task = seen_of(x, y, knowledge=Knowledge(defense=defense))
        attack = Learning()
        attack = attack.taught(attack.learn(task, seen[0], public(), torch.Generator()))
        guess = attack(seen, task, 0)
        taken = guess.others[0][CLASS_MEAN if defense is None else "a"].x
        assert torch.equal(guess.x[0], taken)
