"""`standard`: who takes part, when it stops, and how it chooses."""

import time
from dataclasses import replace

import pytest
import torch

from adversary import AttackError, Facts, Public
from adversary.presets import CosineLBFGS
from adversary.search.progress import out_of_time, within
from adversary.standard import CLASS_MEAN, EXACT, Standard, _Answer
from fl_app import data
from fl_app.core.observation import Knowledge
from helpers.attacks import digits, psnr, seen_of


def public():
    return Public(*data.load("mnist").test.at(slice(0, 600)))


def answer(x, distance, *, certain=False, likely=False):
    return _Answer(x, torch.zeros(1, dtype=torch.int64), torch.tensor(distance), certain, likely)


@pytest.fixture
def choosing():
    smooth = torch.full((1, 1, 4, 4), 0.5)
    rough = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    return Standard().taught({"variation": torch.tensor(0.1), "means": smooth}), smooth, rough


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
    assert asked[0] == [*EXACT, "lbfgs", "gauss_newton", "signed adam"]
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


def test_what_explains_the_update_is_taken_whatever_it_looks_like(choosing):
    attack, smooth, rough = choosing
    found = {CLASS_MEAN: answer(smooth, 0.2), "a": answer(smooth, 0.01), "b": answer(rough, 0.02, certain=True)}
    assert attack._choice(found, True) is found["b"]


def test_what_looks_like_no_example_is_not_believed(choosing):
    attack, smooth, rough = choosing
    found = {CLASS_MEAN: answer(smooth, 0.2), "a": answer(rough, 0.01), "b": answer(smooth, 0.04)}
    assert attack._choice(found, True) is found["b"]
    assert attack._choice({CLASS_MEAN: found[CLASS_MEAN], "a": found["a"]}, True) is found[CLASS_MEAN]


def test_a_search_that_explains_nothing_falls_back_to_the_class_mean(choosing):
    attack, smooth, _ = choosing
    found = {CLASS_MEAN: answer(smooth, 0.92), "a": answer(smooth, 0.9)}
    assert attack._choice(found, True) is found[CLASS_MEAN]
    assert attack._choice(found, False) is found["a"], "a defense that is known may hide that much"


def test_the_most_likely_image_outranks_what_fits_the_noise(choosing):
    attack, smooth, _ = choosing
    found = {CLASS_MEAN: answer(smooth, 0.92), "a": answer(smooth, 0.8), "b": answer(smooth, 0.91, likely=True)}
    assert attack._choice(found, False) is found["b"]


def test_without_public_examples_the_update_decides_alone(choosing):
    _, smooth, rough = choosing
    found = {"a": answer(rough, 0.3), "b": answer(smooth, 0.4)}
    assert Standard()._choice(found, True) is found["a"]


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
