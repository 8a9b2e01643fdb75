"""The processes of a sweep: one that dies, a failure within one, and the end of all."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from ray import cloudpickle

from fl_app.sweeps import parallel

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers do not find tests


class Work:
    """A unit that leaves the number of its process in a file, and then does what a unit cannot be asked for in a file."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder

    @property
    def record(self):
        with (self.folder / self.name).open("a") as out:
            out.write(f"{os.getpid()}\n")
        if self.name == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.name == "long":
            time.sleep(600)
        raise ValueError("no [luck]")

    @property
    def processes(self):
        path = self.folder / self.name
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def begin(tmp_path):
    def make(workers, name):
        unit = Work(name, tmp_path)
        workers.begin(unit)
        return unit

    return make


def ended_of(workers):
    began, found = time.monotonic(), []
    while not found:
        assert time.monotonic() - began < 120
        found = workers.wait(1)
    return found


def alive(process):
    place = Path(f"/proc/{process}/cmdline")
    return place.exists() and bool(place.read_bytes())


def test_a_process_that_dies_is_replaced_and_its_unit_then_given_up(begin):
    workers = parallel.Processes(2)
    try:
        deadly = begin(workers, "deadly")
        assert workers.free == 1
        (ended,) = ended_of(workers)
        assert ended.unit is deadly
        assert "died 2 times" in ended.reason
        assert len(set(deadly.processes)) == 2
        assert workers.free == 2
        units = [begin(workers, "harmless"), begin(workers, "as harmless")]  # on both: the dead one was replaced
        assert workers.free == 0
        found = ended_of(workers) + ended_of(workers)
        assert {ended.unit for ended in found} == set(units)
        assert [ended.reason for ended in found] == ["ValueError: no [luck]"] * 2
        assert all("Traceback" in ended.trace for ended in found)
        long = begin(workers, "long")
        assert workers.wait(0.1) == []
        began = time.monotonic()
        while not long.processes:
            assert time.monotonic() - began < 60
            time.sleep(0.01)
    finally:
        workers.close()
    began = time.monotonic()
    while any(map(alive, [*long.processes, *(one for unit in units for one in unit.processes)])):
        assert time.monotonic() - began < 60
        time.sleep(0.05)


def test_a_failure_in_this_process_is_a_reason_and_a_trace(begin):
    here = parallel.Here()
    unit = begin(here, "harmless")
    assert here.free == 0
    (ended,) = here.wait(1)
    assert ended.unit is unit
    assert ended.reason == "ValueError: no [luck]"
    assert "Traceback" in ended.trace
    assert here.free == 1
