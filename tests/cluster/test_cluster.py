"""A real cluster of a head and two nodes, each with a HOME of its own, one of which is killed: nothing else changes."""

import sys
import threading
import time

import numpy as np
import pytest
import ray
from ray import cloudpickle

from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker, make_worker
from fl_app.cluster.bundle import Bundle
from fl_app.cluster.connect import join
from fl_app.cluster.team import Team
from fl_app.core.places import cache_dir, there
from helpers.engines import StopAt, go, same, weights_of
from helpers.paths import ROOT
from helpers.small_sweep import journal, results_of

sys.path.insert(0, str(ROOT / "scripts"))
import bench_cluster

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the nodes do not find tests
NOTHING = Bundle((), np.zeros(0, np.uint8))
FEDEM = "fedem(batches=3)"


def read_there(_folder, name):
    """Work of a guest: read a file of the cache, and say where it is and what is in it."""
    path = cache_dir() / name
    return there(path) and (str(path.resolve()), path.read_bytes())


def done_by(team):
    while not (ended := team.wait(1)):
        pass
    return ended[0]


def begin(team, name, file):
    while not team.free:
        team.wait(1)
    team.begin(name, read_there, file, NOTHING)
    return done_by(team)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.2 is nobody")
def test_a_cluster_gives_what_this_machine_does_without_its_disk_and_after_the_death_of_a_node(
    small, file, sweep, tmp_path, monkeypatch
):
    monkeypatch.delenv("THORNS_RAY_ADDRESS", raising=False)
    path = file()
    assert sweep(path, tmp_path / "here")[0] == 0
    experiment = small.changed(defense=FEDEM, capture="1")
    whole = go(experiment.changed(run_dir=str(tmp_path / "whole")))
    attacked = Session(whole, "dlg(iterations=2)", (), InlineWorker(), threads=1)
    attacked.work(attacked.captured(), 2)  # as many in a job as two nodes have
    with bench_cluster.Machines() as machines:
        monkeypatch.setenv("THORNS_RAY_ADDRESS", machines.address)
        assert join()  # once for all
        try:
            _files_travel_by_their_content(machines)
            _clients_and_their_memories(experiment, whole, tmp_path)
            _attacks(whole, attacked)
            assert list(machines.home("node-0").rglob("guests/*/*")) == []
            _sweep_with_a_node_killed(sweep, path, machines, tmp_path)
        finally:
            ray.shutdown()


def _files_travel_by_their_content(machines):
    (cache_dir() / "some").mkdir(exist_ok=True)
    (cache_dir() / "some" / "file").write_bytes(b"content")
    for name in ("node-0", "node-1"):  # of the same name, but something else
        own = machines.home(name) / ".cache" / "thorns" / "some"
        own.mkdir(parents=True)
        (own / "file").write_bytes(b"not this")
    team = Team({}, most=2)
    try:
        found = begin(team, "one", "some/file")
        assert not found.trouble
        assert found.answer[1] == b"content"
        assert "/by-hash/" in found.answer[0]
        assert str(machines.folder) in found.answer[0]
        assert begin(team, "two", "no/such").answer is False
        team._store.supply.digests["forged"] = "0" * 64
        team._store.supply.gifts["0" * 64] = team._ray.put(np.zeros(3, np.uint8))
        assert "did not arrive as it was sent" in begin(team, "four", "forged").trouble
    finally:
        team.close()


def _clients_and_their_memories(experiment, whole, tmp_path):
    broken = experiment.changed(run_dir=str(tmp_path / "broken"))
    run = go(broken, "ray", StopAt(2))
    assert len(list((run.path / "clients" / "round-000002").iterdir())) == experiment.clients  # came home
    assert same(weights_of(go(broken, "ray", resume=True)), weights_of(whole))


def _attacks(whole, attacked):
    guesses = {name.name: name.read_bytes() for name in attacked.folder.rglob("*.safetensors")}
    assert len(guesses) == 3
    for name in attacked.folder.rglob("*.safetensors"):
        name.unlink()
    worker = make_worker("ray")
    try:
        session = Session(whole, "dlg(iterations=2)", (), worker, threads=1)
        assert [len(part) for part in session.parts(session.captured(), 64)] == [2, 1]
        outcomes = []
        session.work(session.captured(), 64, outcomes.extend)
    finally:
        worker.close()
    assert {outcome.status for outcome in outcomes} == {"done"}, outcomes
    timeless = [{name: _tensors(content) for name, content in some.items()} for some in (guesses, _read(session.folder))]
    assert timeless[0] == timeless[1]


def _read(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*.safetensors")}


def _tensors(content):
    """The bytes of a safetensors file behind its header, which holds the seconds that it took."""
    return content[8 + int.from_bytes(content[:8], "little") :]


def _sweep_with_a_node_killed(sweep, path, machines, tmp_path):
    out = tmp_path / "there"

    def kill():
        until = time.monotonic() + 120
        while not list(out.glob("work/*.json")) and time.monotonic() < until:
            time.sleep(0.02)
        machines.kill(1)

    killer = threading.Thread(target=kill)
    killer.start()
    code, told = sweep(path, out, workers=0)
    killer.join()
    assert code == 0, told
    assert "on 2 workers of the cluster" in told
    assert results_of(out) == results_of(tmp_path / "here")
    assert set(journal(out, "finished").values()) == {1}
    assert journal(out, "finished").keys() == journal(tmp_path / "here", "finished").keys()
