"""Encrypted aggregation: the weights of plain FedSGD, ciphertexts and one mean for the server, and a line for what is wrong."""

import sys
from types import SimpleNamespace

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from fl_app import client_app, engines
from fl_app.analysis.conditions import conditions_of
from fl_app.analysis.results import CellResult, read_run
from fl_app.client.policy import KEY_FILE
from fl_app.core.wire import to_record
from fl_app.engines.serving import build_strategy
from fl_app.engines.watcher import Watcher
from fl_app.experiment import limits
from fl_app.experiment.assets import assets_of
from fl_app.experiment.runs import create_run
from fl_app.models import parameters_of
from fl_app.report import tables
from helpers.engines import captures_of, go, same, weights_of
from helpers.hidden import Watched, start
from strategies.ckks import MOST_BYTES, Key
from strategies.encrypted import RECORD, Encrypted, _usual


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Two key files."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        (folder / name).write_bytes(Key.make().to_bytes())
        (folder / name).chmod(0o600)
    return folder


@pytest.fixture
def five(small):
    """Weights after a round are those before it minus the mean gradient."""
    return small.changed(clients=5, optimizer="sgd(lr=1)", visibility="encrypted")


def encrypted(strategy):
    return Encrypted(strategy, max_examples=4)


def all_have(keys, clients=5):
    return {client: {KEY_FILE: str(keys / "ours")} for client in range(clients)}


def plain_of(experiment, without=None):
    """The same round in the clear, without a client."""

    class Silent(Watched):
        def send_and_receive(self, messages, *, timeout=None):
            heard = super().send_and_receive(messages)
            return [one for one in heard if (one.metadata.src_node_id - 1, one.metadata.message_type) != (without, "train")]

    return start(experiment.changed(visibility="individual"), client_app.app, grid=Silent)[0]


def close(a, b):
    """Relative error of all weights together, which CKKS leaves below that of float32."""
    flat = [torch.cat([value.reshape(-1).double() for value in each.values()]) for each in (a, b)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm()) < 1e-6


def test_a_run_has_the_weights_of_plain_fedsgd_over_rounds(small, tmp_path):
    settings = {"rounds": 5, "capture": "2", "optimizer": "adam(lr=0.01)", "client_examples": 6}
    plain, sealed = (
        go(small.changed(visibility=kind, run_dir=str(tmp_path / kind), **settings)) for kind in ("aggregate", "encrypted")
    )
    assert close(weights_of(sealed), weights_of(plain))
    assert not same(weights_of(sealed), weights_of(plain))
    (mean,), (seen,) = captures_of(plain), captures_of(sealed)
    assert (seen.visibility, seen.client, seen.num_examples) == ("aggregate", -1, mean.num_examples)
    assert close(seen.update, mean.update)
    key = sealed.path / "clients" / "encryption.key"
    assert key.stat().st_mode & 0o077 == 0
    line, before = sealed.metrics()[-1], plain.metrics()[-1]
    assert line["accepted"] == small.clients
    assert line["received_bytes"] > 10 * before["received_bytes"]


def test_the_server_gets_ciphertexts_and_one_mean(five, keys):
    weights, grid = start(five, client_app.app, encrypted, given=all_have(keys))
    assert close(weights, plain_of(five))
    *sealed, opened = [reply for reply in grid.replies if reply.metadata.message_type == "train"]
    assert len(sealed) == 5
    for reply in sealed:
        assert not reply.content.array_records
        assert dict(reply.content[RECORD]).keys() == {"sealed", "key", "num-examples"}
    assert list(opened.content.array_records["arrays"]) == ["sum"]
    first = [bytes(reply.content[RECORD]["sealed"][0]) for reply in sealed]
    assert len(set(first)) == 5


def test_a_client_with_another_key_is_left_out(five, keys, caplog):
    given = all_have(keys)
    given[1] = {KEY_FILE: str(keys / "theirs")}
    weights, _ = start(five, client_app.app, encrypted, given=given)
    assert close(weights, plain_of(five, without=1))
    assert "client 1 is rejected: the client failed: it is under another encryption key than most" in caplog.text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sealed": [bytes(MOST_BYTES + 1)]}, "bytes, 263168 at most"),
        ({"sealed": [b"tampered"]}, "not a ciphertext"),
        ({"sealed": []}, "brings 0 ciphertexts"),
        ({"sealed": [1, 2]}, "brings no ciphertexts"),
        ({"num-examples": 1000}, "not a whole number from 1 to 4"),
    ],
)
def test_a_reply_of_wrong_bytes_is_left_out_with_one_line(five, keys, caplog, change, why):
    class Tampered(Watched):
        def _answer(self, message):
            reply = super()._answer(message)
            if reply.metadata.src_node_id == 3 and reply.has_content() and RECORD in reply.content:
                number = len(reply.content[RECORD]["sealed"])
                changed = {
                    key: value * number if len(value) == 1 else value for key, value in change.items() if key == "sealed"
                }
                reply.content[RECORD] = ConfigRecord({**reply.content[RECORD], **change, **changed})
            return reply

    weights, _ = start(five, client_app.app, encrypted, grid=Tampered, given=all_have(keys))
    assert close(weights, plain_of(five, without=2))
    (line,) = [one.getMessage() for one in caplog.records if "client 2 is rejected" in one.getMessage()]
    assert why in line
    assert "\n" not in line


@pytest.mark.parametrize(("keys", "usual"), [("bab", "b"), ("ba", "a"), ("cbacbad", "a"), ("", "")])
def test_the_usual_key_is_that_of_most_replies_and_of_several_the_first_by_name(keys, usual):
    told = [RecordDict({RECORD: ConfigRecord({"key": key})}) for key in [*keys, 7]] + [RecordDict()]  # 7 is no name
    replies = [SimpleNamespace(content=one, has_content=lambda: True) for one in told]
    replies.append(SimpleNamespace(has_content=lambda: False))
    assert _usual(dict(enumerate(replies))) == usual


def test_a_sum_that_nobody_can_open_changes_nothing(five, keys, caplog):
    class Damaged(Watched):
        def _answer(self, message):
            reply = super()._answer(message)
            if reply.metadata.src_node_id == 3 and reply.has_content() and RECORD in reply.content:
                first, *rest = reply.content[RECORD]["sealed"]
                bent = first[:100_000] + bytes([first[100_000] ^ 1]) + first[100_001:]
                reply.content[RECORD] = ConfigRecord({**reply.content[RECORD], "sealed": [bent, *rest]})
            return reply

    assert start(five, client_app.app, encrypted, grid=Damaged, given=all_have(keys))[0] == {}
    assert caplog.text.count("did not open the sum: encrypted_mod: the sum opens to no update") == 3


def asked(message, node, grid):
    return next(iter(grid.send_and_receive([Message(RecordDict(message), node, "train")])))


def test_a_client_opens_one_sum_for_each_update(five, keys):
    """Else a server could have every reply opened by itself, one after the other."""
    _, grid = start(five, client_app.app, encrypted, given=all_have(keys))
    told = next(reply.content[RECORD] for reply in grid.replies if reply.has_content() and RECORD in reply.content)
    ask = {RECORD: ConfigRecord({"stage": "open", "sealed": told["sealed"], "entries": 4096, "key": told["key"]})}
    opener = grid.replies[-1].metadata.src_node_id
    assert "has opened that" in asked(ask, opener, grid).error.reason


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (None, "asks for a plain update"),
        ({"stage": "seal", "most-examples": 4, "clients": 1}, "hides none of them"),
        ({"stage": "seal", "most-examples": 2, "clients": 5}, "must say how many examples"),
        ({"stage": "seal"}, "must say how many examples"),
    ],
)
def test_a_client_does_not_answer_what_would_show_its_update(five, keys, record, why):
    grid = Watched(client_app.app, five.clients, five.run_config())
    grid.contexts[1].node_config[KEY_FILE] = str(keys / "ours")
    weights = to_record(parameters_of(assets_of(five).model))
    request = build_strategy(five).configure_train(1, weights, ConfigRecord(), grid)[0]
    more = {} if record is None else {RECORD: ConfigRecord(record)}
    reply = asked({**request.content, **more}, 1, grid)
    assert why in reply.error.reason
    assert "\n" not in reply.error.reason


def test_a_client_with_a_key_answers_no_plain_run_and_one_without_no_encrypted_one(five, keys, caplog):
    plain = five.changed(visibility="individual")
    assert start(plain, client_app.app, given=all_have(keys))[0] == {}
    assert "answers runs with visibility='encrypted' alone" in caplog.text
    caplog.clear()
    assert start(five, client_app.app, encrypted)[0] == {}  # there is no run directory either
    assert f"this client has no encryption key: name its file in the node config, {KEY_FILE}=" in caplog.text
    caplog.clear()
    (keys / "ours").chmod(0o644)
    assert start(five, client_app.app, encrypted, given=all_have(keys))[0] == {}
    (keys / "ours").chmod(0o600)
    assert "it can be read by others: chmod 600 it" in caplog.text


def test_without_tenseal_a_run_ends_before_it_begins(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(ValueError, match=r"pip install 'thorns\[encrypted\]'") as refused:
        engines.run(small.changed(visibility="encrypted"), "inline", Watcher())
    assert "\n" not in str(refused.value)


def test_a_model_whose_ciphertexts_do_not_fit_is_refused(small, monkeypatch):
    monkeypatch.setattr(limits, "memory", lambda: 10**6)
    with pytest.raises(ValueError, match="the 3 encrypted replies of a round would take"):
        engines.run(small.changed(visibility="encrypted"), "inline", Watcher())


def test_the_key_of_a_command_is_for_its_owner_alone_and_never_overwritten(tmp_path, typed):
    file = tmp_path / "encryption.key"
    assert "the server least of all" in typed("deploy", "encryption-key", str(file)).stdout
    assert file.stat().st_mode & 0o077 == 0
    before = Key.from_bytes(file.read_bytes()).name
    assert "exists" in typed("deploy", "encryption-key", str(file)).stderr
    assert Key.from_bytes(file.read_bytes()).name == before


def test_a_report_says_what_hiding_costs_beside_a_plain_run(small, tmp_path):
    cells = []
    for kind, seconds, carried in (("individual", 1.0, 4_000_000), ("encrypted", 5.0, 70_000_000)):
        run = create_run(tmp_path / kind, small.changed(visibility=kind, run_dir=str(tmp_path / kind), rounds=1))
        run.record({"round": 0, "seconds": 0.0, "accuracy": 0.1})
        run.record({"round": 1, "seconds": seconds, "accuracy": 0.5, "received_bytes": carried, "sent_bytes": 0})
        read = read_run(tmp_path / kind)
        cells.append(CellResult(kind, {"defense": "none", "visibility": kind}, 0, read, read, None))
    conditions = conditions_of(cells)
    table = tables.cost(conditions)
    heads = [column.title for column in table.columns]
    shown = [dict(zip(heads, (entry.text for entry in row), strict=True)) for row in table.rows]
    assert [row["of undefended"] for row in shown] == ["1.00", "5.00"]
    assert [row["from clients, MB"] for row in shown] == ["4", "70"]
    assert [one.seen_in_words for one in conditions] == ["individual updates", "aggregate updates (by encrypted)"]
