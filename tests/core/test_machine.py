"""What this machine has, and how the user's own settings weigh more."""

import os

import pytest

from fl_app.core import machine


def test_memory_is_what_the_system_says():
    with open("/proc/meminfo") as lines:
        kilobytes = int(next(line for line in lines if line.startswith("MemTotal")).split()[1])
    assert machine.memory() == pytest.approx(1024 * kilobytes, rel=0.01)
    assert machine.gigabytes(1234.56e9) == "1,234.6 GB"


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine.cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert machine.cores() == len(allowed)
    monkeypatch.delattr(os, "sched_getaffinity")
    for count, cores in ((3, 3), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert machine.cores() == cores


@pytest.mark.parametrize(("asked", "threads"), [("5", 5), (" 6 , 2", 6), ("0", None), ("many", None), ("", None), ("-1", None)])
def test_threads_are_what_openmp_was_told_or_one_per_core(asked, threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert machine.free_threads() == (threads or machine.cores())


@pytest.mark.parametrize(("own", "policy", "spins"), [({}, "passive", "0"), ({"OMP_WAIT_POLICY": "active"}, "active", "0")])
def test_threads_wait_passively_unless_the_user_says_otherwise(own, policy, spins, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(own))
    machine.wait_passively()
    assert os.environ == {"OMP_WAIT_POLICY": policy, "GOMP_SPINCOUNT": spins}


def test_a_cluster_is_used_only_if_it_is_named_for_this(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.delenv("THORNS_RAY_ADDRESS", raising=False)
    assert machine.ray_address() == "local"
    monkeypatch.setenv("THORNS_RAY_ADDRESS", "10.0.0.2:6379")
    assert machine.ray_address() == "10.0.0.2:6379"
