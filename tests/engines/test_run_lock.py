"""A run belongs to one process at a time, and so does the folder of an attack's results."""

import json
import signal
import subprocess
import time

from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker
from helpers.cli import THORNS, settings_of, thorns
from helpers.engines import go


def started(words, cwd, there):
    """A command in the background, once `there` says that it is at work."""
    process = subprocess.Popen([*THORNS, *words], cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not there() and time.monotonic() < deadline:
        assert process.poll() is None, "it ended before anybody could come second"
        time.sleep(0.02)
    return process


def refused(done, process):
    assert done.returncode == 2, done.stdout
    assert f"held by process {process.pid}: thorns " in done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_run_that_is_being_trained_cannot_be_resumed_or_begun_meanwhile(small, tmp_path):
    words = [*settings_of(small, ("rounds", 100000)), "-c", "run-dir=out"]
    metrics = tmp_path / "out" / "metrics.jsonl"
    process = started(["run", *words], tmp_path, lambda: metrics.exists() and metrics.read_text().count("\n") > 2)
    try:
        assert "is being trained" in refused(thorns("run", "--resume", "out", "-c", "rounds=90000", cwd=tmp_path), process)
        assert "is being trained" in refused(thorns("run", *words, cwd=tmp_path), process)
        before = metrics.read_text().count("\n")
        time.sleep(0.5)
        assert metrics.read_text().count("\n") > before
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
    rounds = [json.loads(line)["round"] for line in metrics.read_text().splitlines()]
    assert rounds == list(range(len(rounds)))
    assert thorns("run", "--resume", "out", "-c", f"rounds={rounds[-1] + 2}", cwd=tmp_path).returncode == 0


def test_two_attacks_do_not_write_to_the_same_folder(small, tmp_path):
    run = go(small.changed(batch_size=1, rounds=1, capture="all"))
    slow, quick = "idlg(iterations=100000, restarts=1, solved=0)", "idlg(iterations=2, restarts=1)"
    lock = Session(run, slow, (), InlineWorker()).folder / ".lock"
    words = ["attack", str(run.path), "--no-lpips", "--attack"]
    process = started([*words, slow], tmp_path, lambda: lock.exists() and lock.read_text())
    try:
        assert "is being written by another attack" in refused(thorns(*words, slow, cwd=tmp_path), process)
        other = thorns(*words, quick, cwd=tmp_path)  # another folder
        assert other.returncode == 0, other.stderr
    finally:
        process.kill()
        process.wait(30)
