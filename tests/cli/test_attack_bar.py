"""What is seen of an attack while it runs, and how it is ended."""

import io
import os
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from adversary.search.progress import report
from fl_app.cli import attack_bar
from fl_app.cli.attack_bar import AttackBar
from helpers.engines import go

SLOW = "idlg(iterations=1000000, restarts=1, solved=0)"


@pytest.fixture
def captured(small):
    return go(small.changed(batch_size=1, rounds=1, capture="all"))


def test_the_bar_moves_within_a_job_and_never_back(monkeypatch):
    monkeypatch.setattr(attack_bar, "LINE_SECONDS", 0.0)
    told = io.StringIO()
    with AttackBar(Console(file=told, width=120), "idlg", [4, 2]) as bar:
        say = report.get()
        shares = []
        for iteration in (50, 20, 100):
            say(iteration, 100)
            shares.append(bar._bar.tasks[0].completed)
        bar.job_done(4)
        shares.append(bar._bar.tasks[0].completed)
        say(50, 100)
        shares.append(bar._bar.tasks[0].completed)
    assert shares == [2, 2, 4, 4, 5]
    assert report.get() is None
    assert "idlg: 33% of 6 targets, about" in told.getvalue()


def started(captured, tmp_path, seconds):
    code = (
        f"import fl_app.cli.attack_bar as b; b.LINE_SECONDS = {seconds}\n"
        "import adversary.search.progress as p; p.SECONDS = 0.2\n"
        "from fl_app.cli.main import main; main()"
    )
    words = [sys.executable, "-c", code, "attack", str(captured.path), "--attack", SLOW]
    return subprocess.Popen(
        words,
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_pipe_is_told_how_far_an_attack_is_and_sigterm_ends_it_like_ctrl_c(captured, tmp_path):
    process = started(captured, tmp_path, 0.5)
    try:
        for line in process.stdout:
            if "of 3 targets, about" in line:
                break
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143, err
    assert "the same command goes on" in out
    assert "Traceback" not in err
