"""Audits and sweeps hold the folder they write to, as attacks on runs do, and compute where they are told."""

import logging
import threading

import pytest

from fl_app.attacking.audit import AuditSession, captures_in
from fl_app.attacking.jobs import TaskSpec
from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker
from fl_app.store.locks import alone
from fl_app.sweeps.plan import Attacking
from fl_app.sweeps.work import attack
from helpers.engines import go
from helpers.foreign_app import MODULE, capture

QUICK = "idlg(iterations=2, restarts=1)"
WORDS = ("--model", f"{MODULE}:plain", "--input-shape", "1,6,6", "--classes", "3")


class Listening(InlineWorker):
    """Notes where jobs are to compute."""

    def run(self, job):
        self.seen = job.device, job.threads
        return []


def test_an_audit_that_is_at_work_is_not_joined_by_another(theirs, typed):
    capture(theirs, "plain")
    assert typed("attack", ".", *WORDS, "--attack", QUICK).returncode == 0
    (lock,) = theirs.glob("attacks/*/.lock")
    with alone(lock):
        done = typed("attack", ".", *WORDS, "--attack", QUICK)
    assert done.returncode == 2
    assert "is being written by another attack: wait for it (held by process" in done.stderr


def test_an_attack_of_a_sweep_waits_for_one_by_hand(small, caplog):
    caplog.set_level(logging.INFO, logger="thorns")
    run = go(small.changed(batch_size=1, rounds=1, capture="all"))
    asked = Attacking(QUICK, (), False, False, False, "", ())
    folder = Session(run, QUICK, (), InlineWorker()).folder
    free, held = threading.Event(), threading.Event()

    def by_hand():
        with alone(folder / ".lock"):
            held.set()
            free.wait(30)
            assert not (folder / "scores.jsonl").exists()

    thread = threading.Thread(target=by_hand)
    thread.start()
    held.wait(30)
    threading.Timer(0.5, free.set).start()
    attack(run.path, asked)
    thread.join()
    assert f"waiting for {folder / '.lock'}" in caplog.text
    assert (folder / "scores.jsonl").exists()


def test_audits_compute_where_they_are_told(theirs):
    capture(theirs, "plain")
    task, worker = TaskSpec(f"{MODULE}:plain", (1, 6, 6), 3, None, theirs), Listening()
    for told, expected in (({}, ("cpu", 1)), ({"device": "cuda", "threads": 3}, ("cuda", 3))):
        session = AuditSession(captures_in(theirs), theirs / "out", QUICK, worker, task=task, **told)
        session.work([(1, 0)], 1)
        assert worker.seen == expected


@pytest.mark.parametrize("command", ["attack", "gate", "fit-rule"])
def test_every_audit_takes_a_device(theirs, typed, command, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    capture(theirs, "plain")
    truth = () if command == "attack" else ("--truth", "truth.safetensors")
    done = typed(command, ".", *WORDS, *truth, "--device", "cuda")
    assert done.returncode == 2
    assert "torch sees no GPU here" in done.stderr
