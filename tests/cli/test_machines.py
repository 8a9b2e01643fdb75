"""Commands beside other work: threads, devices and clusters that a user meant, and no others."""

import os
import subprocess
import sys

import pytest
import torch

from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker, RayWorker
from fl_app.core.machine import cores, free_threads
from fl_app.engines.flower import gpu_share
from fl_app.store.runs import RunDir
from helpers.cli import thorns
from helpers.engines import go

IDLG = "idlg(iterations=2, restarts=1)"


@pytest.fixture
def captured(small):
    return go(small.changed(batch_size=1, rounds=1, capture="all"))


def test_openmp_waits_passively_before_torch_is_imported_unless_the_user_says_otherwise():
    code = (
        "import sys, os; sys.argv = ['thorns', '--help']\n"
        "from fl_app.cli import main\n"
        "assert 'torch' not in sys.modules\n"
        "try: main.main()\n"
        "except SystemExit: pass\n"
        "print(os.environ['OMP_WAIT_POLICY'], os.environ['GOMP_SPINCOUNT'])"
    )
    bare = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    for more, expected in (({}, "passive 0"), ({"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "7"}, "active 7")):
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, env={**bare, **more}, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == expected


def test_an_attack_takes_the_cores_that_it_may_use_or_what_the_user_says(captured, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cores() == 1
        assert Session(captured, IDLG, (), InlineWorker()).threads == 1
    finally:
        os.sched_setaffinity(0, allowed)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert Session(captured, IDLG, (), InlineWorker()).threads == 3
    assert Session(captured, IDLG, (), InlineWorker(), threads=5).threads == 5
    for nonsense in ("0", "", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", nonsense)
        assert free_threads() == cores()


def test_threads_and_device_are_options_of_an_attack(captured, monkeypatch, typed):
    words = ["attack", str(captured.path), "--attack", IDLG, "--no-lpips"]
    told = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    done = typed(*words, "--threads", "3", "--device", "auto")
    assert done.returncode == 0, done.stderr
    assert 3 in told
    bad = typed(*words, "--device", "cuda")
    if not torch.cuda.is_available():
        assert bad.returncode == 2
        assert "torch sees no GPU here" in bad.stderr


def test_a_run_of_a_gpu_can_be_attacked_on_the_cpu(captured, tmp_path):
    text = captured.settings_path.read_text()
    captured.settings_path.write_text(text.replace('device = "cpu"', 'device = "cuda"'))
    done = thorns("attack", str(captured.path), "--attack", IDLG, "--no-lpips", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_cluster_that_happens_to_be_around_is_not_used_and_paths_are_absolute(captured, monkeypatch):
    """The address is of nobody: who connects to it fails."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.chdir(captured.path.parent)
    jobs = []

    class Seen(InlineWorker):
        def run(self, job):
            jobs.append(job)
            return super().run(job)

    relative = RunDir.open(captured.path.relative_to(os.getcwd()))
    session = Session(relative, IDLG, (), Seen())
    session.work(session.captured()[:1], 64)
    assert jobs[0].captures.is_absolute()
    assert jobs[0].out.is_absolute()
    worker = RayWorker()
    try:
        session = Session(relative, IDLG, (), worker)
        outcomes = []
        session.work(session.captured()[1:], 64, outcomes.extend)
    finally:
        worker.close()
    assert {outcome.status for outcome in outcomes} == {"done"}, outcomes


def test_clients_share_the_gpus_and_leave_room_for_an_attack():
    assert gpu_share("cpu", 8, gpus=2) == gpu_share("cuda", 8, gpus=0) == 0.0
    for actors in (1, 2, 3, 7, 64):
        for gpus in (1, 2, 8):
            share = gpu_share("cuda", actors, gpus=gpus)
            assert 0 < share <= 0.9
            assert -(-actors // gpus) * share <= 0.9 + 1e-9


def test_two_numbers_of_clients_are_refused(tmp_path):
    done = thorns("deploy", "local", "--clients", "2", "-c", "clients=3", cwd=tmp_path)
    assert done.returncode == 2
    assert "--clients 2 and -c clients=3 say different numbers of clients" in done.stderr
    assert done.stderr.count("\n") == 1
