"""A client's state folder: restarts and resumptions change no bit of the weights, and what is damaged is not used."""

import logging
import stat

import pytest
import torch
from flwr.app import Context, RecordDict

from fl_app.client.policy import Refused
from fl_app.client.state import KEPT_ROUNDS, KEPT_RUNS, ClientState, Kept, check_private
from fl_app.client_app import ANSWERED, app
from fl_app.engines.grpc.connection import NodeSettings
from fl_app.engines.grpc.node import run_node
from fl_app.engines.inline import InlineGrid
from fl_app.engines.serving import serve
from fl_app.engines.watcher import Watcher
from fl_app.store.files import load_tensors, save_tensors
from helpers.engines import StopAt, same, weights_of

MEMORY = "prune(ratio=0.5, memory=True)"


class Nodes(InlineGrid):
    """Clients with state folders; those in `forgetful` lose all that their process knows before each message."""

    def __init__(self, experiment, states, run_id=1, forgetful=(), own=None):
        super().__init__(app, experiment.clients, experiment.run_config())
        self.forgetful = forgetful
        for client, context in enumerate(self.contexts.values()):
            context.run_id = run_id
            if states:
                context.node_config["state-dir"] = str(states / f"node-{client}")
            context.node_config.update((own or {}).get(client, {}))

    def _answer(self, message):
        node = message.metadata.dst_node_id
        if node - 1 in self.forgetful:
            self.contexts[node].state = RecordDict()
        return super()._answer(message)


def go(experiment, states, watcher=None, resume=False, **how):
    grid = Nodes(experiment, states, **how)
    run = serve(grid, Context(1, 0, {}, RecordDict(), experiment.run_config()), watcher or Watcher(), resume=resume)
    return run, grid


@pytest.fixture
def experiment(small):
    return small.changed(defense=MEMORY)


@pytest.fixture
def undisturbed(experiment, tmp_path):
    return weights_of(go(experiment.changed(run_dir=str(tmp_path / "undisturbed")), None)[0])


def test_a_client_that_restarts_before_every_message_changes_no_bit(experiment, undisturbed, tmp_path):
    run, _ = go(experiment, tmp_path / "states", forgetful=(1, 2))
    assert same(weights_of(run), undisturbed)
    forgot, _ = go(experiment.changed(run_dir=str(tmp_path / "other")), None, forgetful=(1, 2))
    assert not same(weights_of(forgot), undisturbed)  # the memory matters


@pytest.mark.parametrize("inside", [False, True], ids=["own folder", "in the run directory"])
def test_a_resumed_run_goes_on_with_what_was_kept(inside, experiment, undisturbed, tmp_path):
    states = tmp_path / "run" / "clients" if inside else tmp_path / "states"
    go(experiment, states, StopAt(3), run_id=5)
    assert bool(list((tmp_path / "run").glob("clients/round-000003/*"))) == inside
    run, _ = go(experiment, states, run_id=6, resume=True, forgetful=(0,))
    assert same(weights_of(run), undisturbed)


@pytest.mark.parametrize("first", ["deployed", "inline"])
def test_deployments_and_the_other_engines_resume_each_other_on_one_machine(first, experiment, undisturbed, tmp_path):
    places = [tmp_path / "run" / "clients", None]
    if first == "inline":
        places.reverse()
    go(experiment, places[0], StopAt(3), run_id=5)
    assert same(weights_of(go(experiment, places[1], run_id=6, resume=True)[0]), undisturbed)


def test_a_client_that_was_away_when_a_round_was_kept_still_has_it(experiment, undisturbed, tmp_path):
    go(experiment, tmp_path / "states", StopAt(3), run_id=5)
    (kept,) = (tmp_path / "states").glob("node-1/*/round-000003.safetensors")
    kept.unlink()
    run, _ = go(experiment, tmp_path / "states", run_id=6, resume=True)
    assert same(weights_of(run), undisturbed)


def test_a_run_begun_anew_starts_with_an_empty_memory(experiment, undisturbed, tmp_path):
    go(experiment, tmp_path / "states", StopAt(3), run_id=5)
    (tmp_path / "run").rename(tmp_path / "moved")
    run, _ = go(experiment, tmp_path / "states", run_id=6)
    assert same(weights_of(run), undisturbed)


@pytest.mark.parametrize("harm", ["cut off", "of another version", "foreign"])
def test_a_harmed_file_is_named_and_the_client_does_not_answer(harm, experiment, tmp_path, caplog):
    go(experiment, tmp_path / "states", StopAt(3))
    (latest,) = (tmp_path / "states").glob("node-1/*/latest.safetensors")
    if harm == "cut off":
        latest.write_bytes(latest.read_bytes()[:100])
    else:
        save_tensors(latest, {"a": torch.ones(1)}, {"version": "2", "round": "3"} if harm.startswith("of") else {})
    before = latest.read_bytes()
    caplog.set_level(logging.INFO)
    run, _ = go(experiment, tmp_path / "states", resume=True, forgetful=(1,))
    counts = [(line["accepted"], line["rejected"]) for line in run.metrics() if line["round"] > 3]
    assert counts == [(2, 1)] * 3  # and the others' run goes on
    assert latest.read_bytes() == before
    told = [line for line in caplog.messages if str(latest) in line]
    assert told
    assert all("does not answer until it is removed" in line for line in told)
    sent = [line for line in caplog.messages if "is rejected" in line]
    assert not any(str(tmp_path) in line for line in sent)  # the path stays with the client
    assert any("client 1 could not keep its state" in line for line in caplog.messages)


def test_what_does_not_change_is_not_written_again(small, tmp_path):
    go(small, tmp_path / "none")
    assert not list((tmp_path / "none").rglob("*.safetensors"))
    # Sensitivities are measured once.
    constant = small.changed(defense="soteria(variant='mixed', probes=4)", run_dir=str(tmp_path / "constant"), rounds=3)
    go(constant, tmp_path / "states")
    rounds = {load_tensors(path)[1]["round"] for path in (tmp_path / "states").glob("*/*/latest.safetensors")}
    assert rounds == {"1"}


def test_answered_rounds_are_remembered_by_a_client_that_counts(small, tmp_path):
    own = {0: {"min-examples": 1}}
    _, grid = go(small.changed(rounds=4), tmp_path / "states", forgetful=(0,), own=own)
    assert grid.contexts[1].state[ANSWERED]["last-round"] == 4
    (latest,) = (tmp_path / "states").glob("node-0/*/latest.safetensors")
    assert load_tensors(latest)[1]["answered"] == "4"
    assert not list((tmp_path / "states").glob("node-1/*/*.safetensors"))  # the others have nothing to remember


def test_a_folder_is_private_and_keeps_few_rounds_and_runs(experiment, tmp_path):
    root = tmp_path / "state"
    for number in range(KEPT_RUNS + 3):
        state = ClientState(root, experiment.changed(seed=number), None, 0, 1)
        state.write(Kept(1, 1, 0, {}))
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert len(list(root.iterdir())) == KEPT_RUNS + 1  # those before it was made, and the new one
    for server_round in range(1, 6):
        state.keep(server_round)
    assert len(list(state.folder.glob("round-*"))) == KEPT_ROUNDS
    assert ClientState(root, experiment.changed(seed=number, rounds=99), None, 0, 2).folder == state.folder


def test_a_state_that_cannot_be_kept_is_no_answer(experiment, tmp_path, caplog):
    (tmp_path / "state").write_text("in the way")
    with pytest.raises(Refused, match="cannot keep its state"):
        ClientState(tmp_path / "state", experiment, None, 0, 1).write(Kept(1, 1, 0, {}))
    assert str(tmp_path) in caplog.text


def test_a_folder_that_others_can_read_ends_the_client_before_it_connects(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(ValueError, match="chmod 700"):
        run_node(NodeSettings("127.0.0.1:1", {"partition-id": 0}, insecure=True, state=tmp_path))
    check_private(tmp_path / "not there yet")


def test_the_usual_folder_is_by_key_or_partition(tmp_path, monkeypatch):
    from fl_app.engines.grpc.certificates import make_node_key

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    keys = [make_node_key(tmp_path, number) for number in range(2)]
    folders = {NodeSettings("a:1", {}, key=key).state_folder for key in keys}
    folders.add(NodeSettings("a:1", {"partition-id": 3}, insecure=True).state_folder)
    assert {folder.parent for folder in folders} == {tmp_path / "thorns" / "clients"}
    assert len(folders) == 3
