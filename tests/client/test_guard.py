"""A guarded client: what it sends is what it would have sent, or nothing, and the server does not learn why."""

import contextlib
import logging
from pathlib import Path

import pytest
import torch

from fl_app.client.digests import compare, read_digests, words
from fl_app.client.guard import guard_of
from fl_app.client_app import LOSSES
from fl_app.core.spec import SpecError
from fl_app.experiment.assets import assets_of
from fl_app.experiment.guards import GUARDS, build
from fl_app.experiment.toml import ConfigError
from fl_app.models import parameters_of
from fl_app.store.files import RunError, RunFailed
from fl_app.store.runs import RunDir
from helpers.clients import NOISE, ask, federation, update_of
from helpers.crafted import fishing_class
from helpers.engines import go, same, weights_of
from strategies.crafts import CRAFTS


def honest_and_crafted(experiment):
    params = parameters_of(assets_of(experiment).model)
    return params, fishing_class(params)


def said_by(caplog):
    return [line for line in caplog.messages if "guard" in line and "measured" not in line]


@pytest.mark.parametrize("defense", ["none", NOISE, "dp_sgd(noise=0.1)", "mixup + prune"])
def test_a_guard_changes_nothing_of_what_is_sent(small, defense):
    plain = small.changed(defense=defense)
    weights = weights_of(go(plain))
    for mode in ("warn", "refuse(loss=1000.0)"):
        guarded = plain.changed(guard=mode, run_dir=f"{small.run_dir}-{mode[:4]}")
        assert same(weights_of(go(guarded)), weights)


def test_it_changes_no_draw_of_a_client_with_a_secret(small, tmp_path):
    run, seed = small.changed(defense=NOISE), {"secret-seed-file": str(tmp_path / "secret")}
    sent = [update_of(ask(federation(run, {0: {**seed, **more}}), run)[0]) for more in ({}, {"guard": "refuse"})]
    assert same(*sent)


def test_crafted_weights_are_refused_in_one_line_and_the_server_does_not_learn_why(small, caplog):
    _, crafted = honest_and_crafted(small)
    own = {0: {"guard": "refuse"}, 1: {"guard": "warn"}, 2: {"guard": "refuse", "guard-says-why": True}}
    replies = ask(federation(small, own), small, crafted)
    assert replies[0].error.reason.endswith(": refused")
    update_of(replies[1])
    assert "refused: bias is 192" in replies[2].error.reason
    refused, warned, also, why = said_by(caplog)
    assert refused.startswith("refused: the guard does not answer: bias is 192")
    assert "empty_rows is 0.667" in refused
    assert warned.startswith("guard: bias is 192")
    assert also.startswith("guard: loss is 222")  # the would-be update of the client that goes on
    assert why == refused


def test_a_refused_round_leaves_no_trace_and_an_honest_one_is_answered_after_it(small):
    honest, crafted = honest_and_crafted(small)
    run = small.changed(defense="prune(ratio=0.5, memory=True)")
    grid, fresh = federation(run, {0: {"guard": "refuse"}}), federation(run, {})
    ask(grid, run, crafted)
    assert LOSSES not in grid.contexts[1].state
    assert not grid.contexts[1].state.array_records
    assert same(update_of(ask(grid, run, honest, 2)[0]), update_of(ask(fresh, run, honest, 2)[0]))
    assert len(grid.contexts[1].state[LOSSES]["losses"]) == 1


def test_a_conspicuous_loss_is_not_what_the_next_one_is_compared_with(small):
    honest, _ = honest_and_crafted(small)
    spoilt = {**honest, "net.fc.bias": torch.tensor([0.0, 0.0, 100.0])}
    grid = federation(small, {0: {"guard": "warn(bias=1000.0)"}})
    ask(grid, small, honest, 1)
    before = grid.contexts[1].state[LOSSES]["losses"]
    ask(grid, small, spoilt, 2)
    assert grid.contexts[1].state[LOSSES]["losses"] == before


@pytest.mark.parametrize("server", [name for name in CRAFTS if name != "honest"])
def test_every_malicious_server_is_refused_in_the_round_in_which_it_attacks(small, server, caplog):
    """By all clients; rounds in which the same server is honest are answered, unless it has changed the architecture."""
    run = small.changed(server=server, guard="refuse", model="mlp(hidden=[40, 20])", rounds=2, capture="2")
    with caplog.at_level(logging.WARNING, "thorns"), contextlib.suppress(RunFailed):
        go(run)
    rounds = [line for line in RunDir(Path(run.run_dir)).metrics() if line["round"]]
    assert rounds[1]["accepted"] == 0
    assert rounds[1]["rejected"] == small.clients
    if "architecture" not in run.craft.chooses:
        assert rounds[0]["accepted"] == small.clients
    told = [line for line in caplog.messages if "is rejected" in line]
    assert all(line.endswith("Refused: refused") for line in told)


def test_own_settings_rule_over_the_runs():
    assert guard_of({}) is None
    assert guard_of({}, "refuse").guard == build("refuse")
    assert guard_of({"guard": "warn"}, "off").guard == build("warn")
    assert guard_of({"guard": "off"}, "refuse") is None
    # A node that keeps state is deployed: a run cannot close its eyes.
    assert guard_of({"state-dir": "x"}, "off").guard == build("warn")
    assert guard_of({"state-dir": "x"}, "refuse").guard == build("refuse")
    assert guard_of({"state-dir": "x", "guard": "off"}, "warn") is None
    assert guard_of({"guard": "refuse(solo=0.4, d_snr=5.0)"}).guard.d_snr == 5.0
    assert GUARDS.keys() == {"off", "warn", "refuse"}


@pytest.mark.parametrize(
    "settings",
    [
        {"guard": "refuze"},
        {"guard": "refuse(sollo=1.0)"},
        {"guard": "refuse(solo=-1.0)"},
        {"guard": "off", "models": "lenet5"},
        {"guard": "refuse", "models": "lenet5; no_such_net"},
        {"guard": "refuse", "guard-says-why": "yes"},
        {"gaurd": "refuse"},
    ],
    ids=str,
)
def test_a_client_whose_guard_is_misspelt_sends_nothing(small, settings, caplog):
    replies = ask(federation(small, {0: settings}), small)
    assert "own configuration is not valid; its log says why" in replies[0].error.reason
    assert "this client's node config is not valid" in caplog.text


def test_a_runs_guard_is_checked_before_anything_starts(small):
    with pytest.raises((ConfigError, SpecError), match="sollo"):
        small.changed(guard="warn(sollo=1.0)")


def test_architectures_that_were_not_agreed_on(small):
    own = {
        0: {"guard": "refuse", "models": "linear; lenet"},
        1: {"guard": "refuse", "models": "linear", "guard-says-why": True},
    }
    replies = ask(federation(small, own), small)
    update_of(replies[0])
    assert "model_not_agreed" in replies[1].error.reason


def test_demands_that_honest_networks_may_not_meet(small):
    own = {0: {"guard": "refuse(rank=0.5)"}, 1: {"guard": "refuse(d_snr=0.01)"}, 2: {"guard": "refuse(rank=1000.0, lone=1e9)"}}
    replies = ask(federation(small, own), small)
    assert replies[0].has_error()
    assert replies[1].has_error()
    update_of(replies[2])


def test_clients_of_a_deployment_write_down_what_they_were_sent(small, tmp_path, caplog):
    """And a server that sends one of them other weights is found out by comparing."""
    honest, _ = honest_and_crafted(small)
    other = {name: value.clone() for name, value in honest.items()}
    other["net.fc.bias"][0] += 1e-6
    grid = federation(small, {client: {"state-dir": str(tmp_path / f"node-{client}")} for client in range(3)})
    with caplog.at_level(logging.INFO, "thorns"):
        ask(grid, small, honest, 1)
        ask(grid, small, other, 2)
    files = sorted(tmp_path.glob("node-*/*/weights.txt"))
    assert len(files) == 3
    assert sum("the weights are" in line for line in caplog.messages) == 6
    found = compare({path.parts[-3]: read_digests(path) for path in files})
    assert (found.same, found.different) == ([1, 2], {})
    text = files[0].read_text().splitlines()
    files[0].write_text(f"{text[0]}\n2 {'0' * 64}\n7 {'1' * 64}\n")
    found = compare({path.parts[-3]: read_digests(path) for path in files})
    assert (found.same, list(found.different)) == ([1], [2])
    assert words(found)[1].startswith("round 2: different weights: node-0 0000")
    assert float((files[0].parent / "losses.txt").read_text().split()[0]) > 0


def test_what_is_no_list_of_digests(tmp_path):
    for content in (b"", b"1 abc\n", b"\xff\xfe", b"1 " + b"0" * 64 + b"\nx"):
        (tmp_path / "weights.txt").write_bytes(content)
        with pytest.raises(RunError, match=r"weights\.txt"):
            read_digests(tmp_path / "weights.txt")
    assert words(compare({"a": {1: "x"}, "b": {2: "y"}})) == ["no two of these clients were asked in the same round"]
