"""A search that was broken off goes on from its checkpoint, to the answer of an unbroken one, bit for bit."""

import pytest
import torch

from adversary.search import checkpoint
from adversary.search.problem import Problem
from fl_app.core.local import LocalRule
from helpers.attacks import attack, digits, seen_of

# Between them: both optimisers, all labels, seeds and restarts in which targets drop out, several groups, diverging starts.
SEARCHES = [
    "matching(objective=cosine, priors=[tv(0.1)], optimizer=adam(iterations=8, signed=True, decay=True), seeds=2)",
    "matching(labels=joint, optimizer=adam(iterations=4, restarts=2, lr=1e39))",
    "dlg(iterations=7, restarts=2, solved=3)",
    "matching(objective=robust, optimizer=lbfgs(iterations=8), at_once=1)",
]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "SLOWEST", 0)
    with checkpoint.kept_in(tmp_path / "of" / "searches"):  # neither folder is there yet
        yield tmp_path / "of" / "searches"


@pytest.fixture
def calls(monkeypatch):
    """Counts evaluations, and stops at one of them as Ctrl-C would."""
    found, plain = {"made": 0, "stop": 0}, Problem.gradients

    def counted(self, variables):
        found["made"] += 1
        if found["made"] == found["stop"]:
            raise KeyboardInterrupt
        return plain(self, variables)

    monkeypatch.setattr(Problem, "gradients", counted)
    return found


@pytest.fixture(scope="module")
def target():
    return seen_of(*digits(2, 1), LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1, examples=1, momentum=0.9))


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))


@pytest.mark.parametrize("text", SEARCHES)
def test_wherever_it_is_broken_off_the_answer_is_the_same_and_nothing_is_done_twice(text, target, kept, calls):
    with checkpoint.kept_in(kept.parent / "unbroken"):
        whole = attack(text, *target)
    needed = calls["made"]
    for stop in range(1, needed + 1):  # each time one evaluation later than the last one that is on disk
        calls.update(made=0, stop=2 if stop > 1 else 1)
        with pytest.raises(KeyboardInterrupt):
            attack(text, *target)
    calls.update(made=0, stop=0)
    assert same(attack(text, *target), whole)
    assert calls["made"] == 1
    assert same(attack(text, *target), whole)  # finished ones are kept until the caller has the answers
    assert calls["made"] == 1


def test_other_searches_have_files_of_their_own(target, kept, calls):
    seen, task = target
    text = "idlg(iterations=2, restarts=1)"
    attack(text, seen, task)
    for what, of, seed in ((text, seen[:1], 0), (text, seen, 1), ("dlg", seen, 0)):
        calls.update(made=0, stop=1)
        with pytest.raises(KeyboardInterrupt):
            attack(what, of, task, seed)
    assert len(list(kept.iterdir())) == 4


@pytest.mark.parametrize("damage", [lambda whole: whole[:-9], lambda whole: whole[:-1] + bytes([whole[-1] ^ 1])])
def test_a_damaged_file_is_named_and_the_search_starts_anew(damage, target, kept, calls, caplog):
    text = "idlg(iterations=3, restarts=1)"
    whole = attack(text, *target)
    (path,) = kept.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    calls.update(made=0)
    assert same(attack(text, *target), whole)
    assert calls["made"] == 3
    assert [str(path) in message and "starts anew" in message for message in caplog.messages] == [True]


def test_a_folder_that_cannot_be_written_costs_the_checkpoint_alone(target, kept, caplog):
    kept.parent.mkdir()
    kept.write_text("in the way")
    assert attack("idlg(iterations=1, restarts=1)", *target).loss.isfinite().all()
    assert str(kept) in caplog.text


def test_it_is_written_once_a_minute_and_at_the_end(target, kept, calls, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS", 60.0)
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: 30.0 * calls["made"])
    written = []
    monkeypatch.setattr(checkpoint, "save_tensors", lambda path, state, notes: written.append(int(state["where"][0])))
    attack("matching(optimizer=adam(iterations=10))", *target)
    assert written == [2, 4, 6, 8, 10]


def test_nothing_is_written_unless_a_folder_is_named(target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    attack("idlg(iterations=1, restarts=1)", *target)
    assert not list(tmp_path.iterdir())
