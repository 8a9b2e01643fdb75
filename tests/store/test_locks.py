"""Locks: one holder at a time, who says who it is, and whom the kernel frees however it ends."""

import os
import signal
import subprocess
import sys
import time

import pytest

from fl_app.store.files import RunError
from fl_app.store.locks import alone, holder
from helpers.paths import ROOT

CHILD = """
import sys, time
from pathlib import Path
from fl_app.store.locks import alone
with alone(Path(sys.argv[1])):
    Path(sys.argv[2]).touch()
    time.sleep(60)
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock."""
    there = tmp_path / "there"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "deep" / "lock"), str(there)], cwd=ROOT)
    for _ in range(600):
        if there.exists():
            break
        time.sleep(0.05)
    yield child
    child.kill()
    child.wait()


def test_whoever_comes_second_is_told_who_holds_it(other, tmp_path):
    lock = tmp_path / "deep" / "lock"
    with pytest.raises(RunError, match="it is busy") as error, alone(lock, "it is busy"):
        pass
    assert f"process {other.pid}: -c {tmp_path}" in str(error.value)
    assert "\n" not in str(error.value)
    other.send_signal(signal.SIGKILL)
    other.wait()
    with alone(lock, "it is busy"):  # free at once, however its holder ended
        assert holder(lock).startswith(f"process {os.getpid()}: ")


def test_without_a_complaint_it_waits(other, tmp_path, caplog):
    caplog.set_level("INFO", logger="thorns")
    child = subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(0.5); os.kill({other.pid}, 9)"])
    with alone(tmp_path / "deep" / "lock"):
        assert other.wait() == -9
    assert f"held by process {other.pid}" in caplog.text
    child.wait()


def test_an_error_inside_frees_it(tmp_path):
    with pytest.raises(KeyError), alone(tmp_path / "lock"):
        raise KeyError
    with alone(tmp_path / "lock", "busy"):
        pass
    (tmp_path / "lock").write_text("")
    assert holder(tmp_path / "lock") == holder(tmp_path / "none") == "another process"
