"""The processes of a sweep, with a stand-in for Ray: killing real ones takes long."""

import sys

from fl_app.sweeps import parallel


class Died(Exception):
    pass


class Actor:
    """Its futures are the units themselves."""

    class attempt:
        remote = staticmethod(lambda unit: unit)


class Ray:
    exceptions = type("exceptions", (), {"RayActorError": Died})

    def __init__(self):
        self.made = 0
        self.killed = []

    def init(self, **_):
        pass

    def shutdown(self):
        pass

    def kill(self, actor):
        self.killed.append(actor)

    def remote(self, **_):
        return lambda _kind: type("Handle", (), {"remote": lambda *_: self._actor()})

    def _actor(self):
        self.made += 1
        return Actor()

    def wait(self, futures, **_):
        return futures[:1], futures[1:]

    def get(self, unit):
        if unit == "deadly":
            raise Died("killed")
        return "", ""


def test_a_worker_that_dies_is_replaced_and_then_given_up(monkeypatch):
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    workers = parallel.Processes(1)
    workers.begin("deadly")
    assert workers.wait(1) == []  # it is tried once more
    (ended,) = workers.wait(1)
    assert "died 2 times" in ended.reason
    assert ray.made == 3
    workers.begin("harmless")
    assert workers.wait(1) == [parallel.Ended("harmless")]
    assert workers.free == 1


def test_closing_ends_idle_and_busy_workers_alike(monkeypatch):
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    workers = parallel.Processes(2)
    workers.begin("long")
    workers.close()
    assert len(ray.killed) == 2


def test_a_failure_in_this_process_is_a_reason_and_a_trace(monkeypatch):
    def broken(_unit):
        raise ValueError("no [luck]")

    monkeypatch.setattr("fl_app.sweeps.work.do", broken)
    here = parallel.Here()
    here.begin("unit")
    assert here.free == 0
    (ended,) = here.wait(1)
    assert ended.reason == "ValueError: no [luck]"
    assert "Traceback" in ended.trace
    assert here.free == 1
