"""Clients in several processes: the weights of one, whatever they remember, and whoever of them dies."""

import logging
import multiprocessing
import os
import signal
from dataclasses import dataclass

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

import client_defenses
from client_defenses import Defense
from fl_app import engines
from fl_app.core.wire import to_record, to_tensors
from fl_app.engines.frames import from_frames, to_frames
from fl_app.engines.watcher import Watcher
from fl_app.store.files import RunError
from helpers.engines import Residual, StopAt, captures_of, go, same, weights_of

LONELY = "thorns-test-lonely"


@dataclass(frozen=True, kw_only=True)
class Dies(Defense):
    """Ends the process that it is in, once: the file says where it did not yet."""

    remembers: bool = False

    def on_gradient(self, grads, step, memory):
        if self.remembers:
            memory.state = {"count": memory.state.get("count", torch.zeros(())) + 1}
        path = os.environ[LONELY]
        if os.path.exists(path) and multiprocessing.current_process().daemon and memory.state.get("count", 2) == 2:
            os.unlink(path)
            os.kill(os.getpid(), signal.SIGKILL)
        return grads


@dataclass(frozen=True, kw_only=True)
class Warns(Defense):
    """Says something in the log."""

    def on_gradient(self, grads, step, memory):
        logging.getLogger("thorns").warning("from process %s", "parent" if os.getpid() == int(os.environ[LONELY]) else "copy")
        return grads


@pytest.fixture(autouse=True)
def known(monkeypatch):
    for name, kind in {"residual": Residual, "dies": Dies, "warns": Warns}.items():
        monkeypatch.setitem(client_defenses.DEFENSES, name, kind)


CASES = {
    "partial participation, captured": {"clients": 7, "fraction": 0.4, "capture": "1-2", "partition": "dirichlet(alpha=0.3)"},
    "more processes than clients": {"clients": 2},
    "local steps, batch norm": {"model": "resnet10", "batch_size": 2, "rounds": 2, "update": "delta", "local_steps": 2},
    "a memory, not all asked in each round": {"clients": 6, "fraction": 0.5, "defense": "residual + none", "rounds": 8},
    "masked sums": {"visibility": "secagg", "clients": 4, "rounds": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_the_number_of_processes_does_not_show(case, small, tmp_path):
    experiment = small.changed(**CASES[case])
    runs = [
        engines.run(experiment.changed(run_dir=str(tmp_path / f"{number}")), "inline", Watcher(), workers=number)
        for number in (1, 3)
    ]
    if experiment.visibility != "secagg":  # whose masks are drawn anew
        assert same(*map(weights_of, runs))
    timeless = [[{k: v for k, v in line.items() if "seconds" not in k} for line in run.metrics()] for run in runs]
    assert [line["round"] for line in timeless[0]] == [line["round"] for line in timeless[1]]
    if experiment.visibility != "secagg":
        assert timeless[0] == timeless[1]
    for ours, theirs in zip(*map(captures_of, runs), strict=True):
        assert same(ours.update, theirs.update)
    assert multiprocessing.active_children() == []


def test_a_run_in_several_processes_is_stopped_and_resumed(small, tmp_path):
    experiment = small.changed(clients=6, fraction=0.5, defense="residual + none", rounds=8)
    whole = go(experiment.changed(run_dir=str(tmp_path / "whole")))
    broken = experiment.changed(run_dir=str(tmp_path / "broken"))
    for at, workers in ((3, 2), (5, 3)):
        engines.run(broken, "inline", StopAt(at), resume=at > 3, workers=workers)
    assert same(weights_of(engines.run(broken, "inline", Watcher(), resume=True, workers=2)), weights_of(whole))


def test_a_process_that_dies_loses_nothing_if_its_clients_remember_nothing(small, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(LONELY, str(tmp_path / "alive"))
    whole = go(small.changed(defense="dies", run_dir=str(tmp_path / "whole")))
    (tmp_path / "alive").touch()
    run = engines.run(small.changed(defense="dies", run_dir=str(tmp_path / "run")), "inline", Watcher(), workers=2)
    assert not (tmp_path / "alive").exists()
    assert "ended (signal 9; too little memory?): its clients are asked again elsewhere" in caplog.text
    assert same(weights_of(run), weights_of(whole))


def test_a_process_that_dies_with_a_memory_ends_the_run_with_what_to_do(small, tmp_path, monkeypatch):
    monkeypatch.setenv(LONELY, str(tmp_path / "alive"))
    (tmp_path / "alive").touch()
    experiment = small.changed(defense="dies(remembers=True)", run_dir=str(tmp_path / "run"))
    with pytest.raises(RunError, match=r"with what the defense of clients \[.*remembered.*--resume .*run`"):
        engines.run(experiment, "inline", Watcher(), workers=2)
    assert multiprocessing.active_children() == []


def test_what_clients_log_is_logged_here(small, monkeypatch, caplog):
    monkeypatch.setenv(LONELY, str(os.getpid()))
    engines.run(small.changed(defense="warns", rounds=1), "inline", Watcher(), workers=2)
    assert [record.getMessage() for record in caplog.records].count("from process copy") == small.clients


def test_threads_of_a_gradient_and_one_client_need_no_copies(small, monkeypatch, caplog):
    monkeypatch.setenv(LONELY, str(os.getpid()))
    for number, settings in enumerate(({"threads": 2}, {"clients": 1})):
        experiment = small.changed(defense="warns", rounds=1, run_dir=f"{small.run_dir}{number}", **settings)
        engines.run(experiment, "inline", Watcher(), workers=2)
    said = {record.getMessage() for record in caplog.records}
    assert {one for one in said if one.startswith("from process")} == {"from process parent"}


def test_frames_bring_back_every_message():
    weights = {
        "w": torch.randn(3, 5),
        "none": torch.zeros(0, 2),
        "half": torch.randn(7).half(),
        "count": torch.tensor(3),
        "turned": torch.arange(6.0).view(2, 3).T,
    }
    shared = to_record(weights)
    plain = ArrayRecord({"a": Array("uint8", (3,), "mine", b"abc")})
    contents = [
        RecordDict({"arrays": shared, "config": ConfigRecord({"round": 3, "words": ["a", "b"]})}),
        RecordDict({"arrays": shared, "metrics": MetricRecord({"n": 2})}),
        RecordDict({"arrays": plain}),
        RecordDict(),
    ]
    messages = [Message(content, node, "train") for node, content in enumerate(contents)]
    failed = Message(Error(7, "no"), reply_to=messages[0])
    head, bodies = to_frames([*messages, failed])
    assert len(bodies) == 4  # the shared record once
    for buffers in ([b"".join(body) for body in bodies], [bytearray(b"".join(body)) for body in bodies]):
        back = from_frames(head, buffers)
        for number in (0, 1):
            assert same(to_tensors(back[number].content["arrays"]), weights)
        assert [one.metadata.dst_node_id for one in back[:4]] == [0, 1, 2, 3]
        assert dict(back[0].content["config"]) == {"round": 3, "words": ["a", "b"]}
        assert back[2].content["arrays"]["a"].data == b"abc"
        assert (back[4].error.code, back[4].error.reason) == (7, "no")
        assert [one.metadata.__dict__ for one in back[:4]] == [one.metadata.__dict__ for one in messages]
        assert [one.metadata.dst_node_id for one in from_frames(head, buffers, 1, 3)] == [1, 2]
