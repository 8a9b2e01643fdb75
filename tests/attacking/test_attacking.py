"""Attacks on the captures of a run: firewall, faults, resumption, and the command line."""

import json
import os
import signal
import subprocess
import threading
import time

import pytest
import torch

from fl_app import engines
from fl_app.attacking.background import beside
from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker, RayWorker
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import assets_of
from fl_app.experiment.grants import parse_grants
from fl_app.experiment.runs import experiment_of
from fl_app.scoring.attacks import Scoring
from fl_app.scoring.score import summarize
from fl_app.store.files import RunError
from fl_app.store.reconstructions import guess_path, load_guess
from helpers.cli import thorns

IDLG = "idlg(iterations=60, restarts=1)"


@pytest.fixture
def captured(small):
    return engines.run(small.changed(batch_size=1, rounds=2, capture="all"), "inline", Watcher())


def attack(run, text=IDLG, grants=(), worker=None):
    session = Session(run, text, grants, worker or InlineWorker())
    keys = session.captured()
    outcomes = []
    session.work(session.pending(keys), 64, outcomes.extend)
    return session, keys, outcomes


def test_a_run_is_attacked_and_scored(captured):
    session, keys, outcomes = attack(captured)
    assert keys == [(r, c) for r in (1, 2) for c in range(3)]
    assert [outcome.status for outcome in outcomes] == ["done"] * 6
    scoring = Scoring(assets_of(experiment_of(captured)), session.folder, session.failures(), perceptual=False)
    scoring.run(keys)
    found = summarize(scoring.rows(), "psnr")
    assert found.n == 6
    assert found.mean > summarize(scoring.floors["noise"], "psnr").mean
    lines = [json.loads(line) for line in (session.folder / "scores.jsonl").read_text().splitlines()]
    assert all(line["ledger"] == "nothing beyond the protocol" for line in lines)
    assert (session.folder / "grid.png").stat().st_size > 1000
    assert session.pending(keys) == []  # nothing is done twice


def test_the_truth_is_out_of_reach_of_an_attack(captured, monkeypatch):
    """With another truth the guesses are the same to the last bit."""
    session, keys, _ = attack(captured)
    first = {key: load_guess(guess_path(session.folder, key))[0] for key in keys}
    for key in keys:
        guess_path(session.folder, key).unlink()
    monkeypatch.setattr("fl_app.experiment.assets.Assets.batch", lambda *_: pytest.fail("an attack asked for the truth"))
    session, _, outcomes = attack(captured)
    assert {outcome.status for outcome in outcomes} == {"done"}
    assert all(torch.equal(first[key], load_guess(guess_path(session.folder, key))[0]) for key in keys)


def test_grants_are_recorded_with_every_result(captured):
    session, keys, _ = attack(captured, "idlg(iterations=5, labels='given')", ("labels", "defense"))
    found = load_guess(guess_path(session.folder, keys[0]))
    y, notes = found.y, found.notes
    assert notes["ledger"] == "labels, defense"
    assert torch.equal(y, assets_of(experiment_of(captured)).batch(0, 1)[1])
    with pytest.raises(ValueError, match="valid: labels, lengths, defense, statistics"):
        parse_grants(["lables"])


def test_what_fails_is_recorded_and_counted_and_the_rest_goes_on(captured):
    (captured.path / "captures" / "round-0001" / "client-01.safetensors").write_bytes(b"damaged")
    session, keys, outcomes = attack(captured)
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    assert [outcome.key for outcome in failed] == [(1, 1)]
    assert "client-01.safetensors" in failed[0].reason
    scoring = Scoring(assets_of(experiment_of(captured)), session.folder, session.failures(), perceptual=False)
    scoring.run(keys)
    summary = summarize(scoring.rows(), "psnr")
    assert (summary.n, summary.failed) == (5, 1)


def test_an_attack_that_cannot_work_is_a_reason_and_not_a_crash(captured):
    _, _, outcomes = attack(captured, "idlg(labels='given')")
    assert {outcome.status for outcome in outcomes} == {"failed"}
    assert "grant labels" in outcomes[0].reason


def test_an_aggregate_is_attacked_and_held_against_the_clients_in_it(small):
    run = engines.run(
        small.changed(clients=4, fraction=0.5, batch_size=2, rounds=1, capture="1", visibility="aggregate"), "inline", Watcher()
    )
    session, keys, outcomes = attack(run, "inverting_gradients(iterations=3)")
    assert keys == [(1, -1)]
    assert outcomes[0].status == "done", outcomes
    scoring = Scoring(assets_of(experiment_of(run)), session.folder, session.failures(), perceptual=False)
    scoring.run(keys)
    assert scoring.targets[0].visibility == "aggregate"
    assert summarize(scoring.rows(), "psnr").n == 1


@pytest.mark.parametrize("engine", ["inline", "ray"])
def test_a_ray_worker_attacks_beside_the_training(small, engine):
    """With and without it the weights are the same; what it could not finish is still open afterwards."""
    plain = engines.run(small.changed(batch_size=1, rounds=40), "inline", Watcher())
    busy = small.changed(batch_size=1, rounds=40, capture="1-2", attack=IDLG, worker="ray", run_dir=small.run_dir + "2")
    run = engines.run(busy, engine, Watcher(), make_beside=beside)
    same = [
        torch.equal(a, b)
        for a, b in zip(plain.load_checkpoint().weights.values(), run.load_checkpoint().weights.values(), strict=True)
    ]
    assert all(same)
    session, keys, _ = attack(run)
    assert len(keys) == 6
    assert session.pending(keys) == []


def test_a_run_without_captures_is_explained(small):
    run = engines.run(small, "inline", Watcher())
    with pytest.raises(RunError, match="-c capture=1"):
        Session(run, IDLG, (), InlineWorker()).captured()


def test_a_worker_that_is_killed_is_restarted_and_its_batch_retried(captured):
    worker = RayWorker()
    try:
        victim = worker.pid

        def kill():
            time.sleep(1.0)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        session, keys, outcomes = attack(captured, "idlg(iterations=500, restarts=1, solved=0)", worker=worker)
        killer.join()
        assert [outcome.status for outcome in outcomes] == ["done"] * 6
        assert worker.pid != victim
        assert session.pending(keys) == []
    finally:
        worker.close()


def test_the_command_line_attacks_resumes_and_refuses(captured, tmp_path):
    done = thorns("attack", str(captured.path), "--attack", IDLG, "--rounds", "1", "--no-lpips", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("class mean", "3 targets", "granted: nothing beyond the protocol", "results:"):
        assert word in done.stdout
    words = ("--attack", IDLG, "--no-lpips", "--judge", str(captured.path))
    again = thorns("attack", str(captured.path), *words, cwd=tmp_path)
    assert "3 of 6 targets were attacked before" in again.stdout
    assert "judged_accuracy" in again.stdout
    for words, hint in (
        (["--attack", "idgl"], "did you mean 'idlg'"),
        (["--attack", IDLG, "--rounds", "x"], "does not select rounds"),
        (["--grant", "everything"], "valid: labels"),
    ):
        bad = thorns("attack", str(captured.path), *words, cwd=tmp_path)
        assert bad.returncode == 2
        assert hint in bad.stderr


def test_ctrl_c_keeps_what_was_attacked(captured, tmp_path):
    slow = "idlg(iterations=100000, restarts=1, solved=0)"
    command = [os.path.join(os.path.dirname(os.sys.executable), "thorns"), "attack", str(captured.path), "--attack", slow]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (captured.path / "attacks").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()  # if it would not stop
    assert process.returncode == 130, err
    assert "the same command goes on" in out
    assert "Traceback" not in err
