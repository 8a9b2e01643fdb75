"""Runs that come to nothing say so, end with 1, and judge nobody."""

import math
import os
import subprocess
import sys

import pytest
import torch

from fl_app.cli.attack import _judge
from fl_app.store.files import RunError, RunFailed
from fl_app.store.runs import Checkpoint, RunDir
from helpers.cli import settings_of, thorns
from helpers.engines import go, same, weights_of

WILD = "sgd(lr=1e38)"


def test_a_run_that_diverges_stops_with_one_line_and_keeps_the_last_finite_round(small, tmp_path):
    done = thorns("run", *settings_of(small.changed(optimizer=WILD, rounds=50)), "-c", "run-dir=out", cwd=tmp_path)
    assert done.returncode == 1
    assert "not finite after round" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Results:" not in done.stdout
    kept = RunDir(tmp_path / "out").load_checkpoint()
    assert all(bool(value.isfinite().all()) for value in kept.weights.values())
    assert kept.server_round < 50
    judging = thorns("attack", "out", "--judge", "out", cwd=tmp_path)
    assert judging.returncode == 2
    assert "cannot judge" in judging.stderr


def test_the_weights_of_the_last_finite_round_are_those_of_a_run_that_ended_there(small, tmp_path):
    wild = small.changed(optimizer="sgd(lr=1e36, momentum=0.9)", rounds=60, eval_every=1)  # the first step is still finite
    with pytest.raises(RunFailed, match="the loss is not finite after round 2: the run stops, round 1 is kept"):
        go(wild)
    kept = RunDir(tmp_path / "run").load_checkpoint()
    assert kept.server_round == 1
    assert same(kept.weights, weights_of(go(wild.changed(rounds=1, run_dir=str(tmp_path / "short")))))


def test_a_run_whose_replies_all_fail_is_a_failure_with_their_reason(small, tmp_path, monkeypatch):
    def broken(*_):
        raise ValueError("no such defense here")

    monkeypatch.setattr("fl_app.client_app.defended_update", broken)
    with pytest.raises(RunFailed, match=r"no reply of a client was usable in 6 rounds.*client 0: .*fail"):
        go(small)
    monkeypatch.undo()
    assert go(small.changed(rounds=8), resume=True).metrics()[-1]["applied"] == 1


def test_the_command_ends_with_1_then(small, tmp_path):
    picky = settings_of(small.changed(min_clients=3, round_timeout=5.0, rounds=1))
    code = (
        "import fl_app.client_app as c\n"
        "def broken(*_): raise ValueError('no such defense here')\n"
        "c.defended_update = broken\n"
        "from fl_app.cli.main import main\nmain()"
    )

    words = [sys.executable, "-c", code, "run", *picky, "-c", "run-dir=out"]
    done = subprocess.run(
        words, cwd=tmp_path, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "no reply of a client was usable in 1 rounds" in done.stderr
    assert "Results:" not in done.stdout


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_judge_nobody(value, small, tmp_path):
    run = go(small)
    weights = weights_of(run)
    assert _judge(run.path, small)
    name = next(iter(weights))
    weights[name] = torch.full_like(weights[name], value)
    run.save_checkpoint(Checkpoint(6, weights, {}))
    with pytest.raises(RunError, match="cannot judge"):
        _judge(run.path, small)
