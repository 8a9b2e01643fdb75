"""Secure aggregation: the server gets the mean to the quantisation and nothing else, and that is what an attack then sees."""

import io
import json

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from rich.console import Console

from client_defenses import defense_mod
from fl_app import client_app
from fl_app.cli.attack import attack_run
from fl_app.engines.inline import InlineGrid
from fl_app.store.captures import Captures
from helpers.engines import captures_of, go, same, weights_of
from helpers.hidden import start
from strategies import Curious
from strategies.secagg import SecAgg, secagg_mod

STEP = 2 * 8.0 / 2**22
"""The quantisation of an entry at the clip of 8."""


def masked_app(train=client_app.train, *behind):
    app = ClientApp(mods=[secagg_mod, *behind])
    app.train()(train)
    app.query("identify")(client_app.identify)
    return app


def masked(strategy):
    return SecAgg(strategy, max_examples=4)


@pytest.fixture
def one_step(small):
    """Weights after a round are those before it minus the mean gradient."""
    return small.changed(clients=5, optimizer="sgd(lr=1)")


def test_the_server_gets_the_mean_to_the_quantisation(one_step):
    plain, _ = start(one_step, client_app.app)
    secure, grid = start(one_step, masked_app(), masked)
    for name, value in plain.items():
        # Each client rounds at random to one of the two nearest steps; the mean of five is off by one at most.
        torch.testing.assert_close(secure[name], value, rtol=0, atol=1.5 * STEP)
    assert not same(plain, secure)
    # Of no reply that the server saw is anything left but noise modulo 2^32, keys, and the number of examples.
    vectors = []
    for reply in grid.replies:
        assert all(len(record) == 0 for record in reply.content.array_records.values())
        for value in dict(reply.content.config_records.get(RECORD_KEY_CONFIGS, {})).get(Key.MASKED_PARAMETERS, []):
            vectors.append(bytes_to_ndarray(value).ravel())
    assert len(vectors) == 5 * (len(plain) + 1)
    noise = np.concatenate([vector for vector in vectors if len(vector) > 1]) / 2**32
    assert abs(noise.mean() - 0.5) < 0.01
    assert abs(noise.std() - 12**-0.5) < 0.01


def test_weights_follow_the_plain_ones_over_rounds(small):
    plain, _ = start(small, client_app.app, rounds=4)
    secure, _ = start(small, masked_app(), masked, rounds=4)
    for name, value in plain.items():
        torch.testing.assert_close(secure[name], value, rtol=0, atol=1e-4)


def test_clients_that_fail_are_left_out_of_the_mean(one_step, caplog):
    def fails(message, context):
        if context.node_config["partition-id"] == 2:
            raise RuntimeError("no data")
        return client_app.train(message, context)

    secure, _ = start(one_step, masked_app(fails), masked)
    app = ClientApp()
    app.train()(fails)
    app.query("identify")(client_app.identify)
    plain, _ = start(one_step, app)
    assert all((secure[name] - value).abs().max() < 1.5 * STEP for name, value in plain.items())
    assert "no data" in caplog.text


def test_with_too_few_clients_nothing_is_learned(one_step, caplog):
    def fails(message, context):
        if context.node_config["partition-id"]:
            raise RuntimeError("no data")
        return client_app.train(message, context)

    secure, _ = start(one_step, masked_app(fails), masked)
    assert secure == {}
    assert "too few clients stayed" in caplog.text


def test_a_client_with_the_mod_sends_nothing_to_a_server_without_it(one_step, caplog):
    secure, _ = start(one_step, masked_app())
    assert secure == {}
    assert "wrap its strategy in SecAgg" in caplog.text


def test_replies_that_cannot_be_summed_are_refused(one_step, caplog):
    def strange(message, context):
        reply = client_app.train(message, context)
        content = RecordDict({"arrays": reply.content["arrays"], "metrics": MetricRecord({"loss": 0.5})})
        return Message(content, reply_to=message)

    assert start(one_step, masked_app(strange), masked)[0] == {}
    assert "needs replies with the arrays of the request and num-examples" in caplog.text


@pytest.mark.parametrize("visibility", ["individual", "aggregate"])
def test_the_curious_server_behind_it_sees_the_mean_alone(one_step, tmp_path, visibility):
    """`visibility = "aggregate"` without the protocol shows the same, to the quantisation."""
    seen = Captures(tmp_path / "secure")

    def wrap(strategy):
        return masked(Curious(strategy, seen, one_step.rule, visibility=visibility))

    start(one_step, masked_app(), wrap)
    found, _ = seen.read_all()
    assert len(found) == (1 if visibility == "aggregate" else 5)
    (aggregate,) = captures_of(go(one_step.changed(capture="1", visibility="aggregate", rounds=1, eval_every=1)))
    for one in found:
        for name, value in aggregate.update.items():
            torch.testing.assert_close(one.update[name], value, rtol=0, atol=2 * STEP)


def test_the_same_attack_on_one_client_and_on_the_aggregate_says_which(small, tmp_path):
    """Two runs with the same seed, so the same weights and updates; only what the server saw of them differs."""
    attack, lines, texts, weights = "inverting_gradients(iterations=3)", {}, {}, []
    for visibility in ("individual", "aggregate"):
        run = go(small.changed(batch_size=2, rounds=2, capture="1", visibility=visibility, run_dir=str(tmp_path / visibility)))
        weights.append(weights_of(run))
        text = io.StringIO()
        attack_run(Console(file=text, width=200), run.path, [attack], grants=[], perceptual=False)
        texts[visibility] = text.getvalue()
        (scores,) = (run.path / "attacks").glob("*/scores.jsonl")
        lines[visibility] = [json.loads(line) for line in scores.read_text().splitlines()]
    assert same(*weights)
    assert [(line["client"], line["visibility"]) for line in lines["individual"]] == [(c, "individual") for c in range(3)]
    assert [(line["client"], line["visibility"]) for line in lines["aggregate"]] == [(-1, "aggregate")]
    assert all(line["status"] == "done" and "psnr" in line for each in lines.values() for line in each)
    for visibility, text in texts.items():
        assert f"the server saw {visibility} updates" in text


def test_the_request_of_another_client_is_not_touched():
    """Within one process clients may share the records of a request, and Flower's mod takes things out of them."""
    shared = RecordDict({RECORD_KEY_CONFIGS: ConfigRecord({Key.STAGE: Stage.SETUP})})
    grid = InlineGrid(masked_app(), 2, {})
    (reply,) = grid.send_and_receive([Message(shared, 1, "train")])
    assert reply.has_error()
    assert dict(shared[RECORD_KEY_CONFIGS]) == {Key.STAGE: Stage.SETUP}


def reasons(grid):
    return {reply.error.reason for reply in grid.replies if reply.has_error()}


def test_a_plain_request_and_a_reply_that_cannot_be_masked_are_refused_in_one_line(one_step):
    _, grid = start(one_step, masked_app())
    (why,) = reasons(grid)
    assert why.startswith("secagg_mod: the server asks for a plain update")

    def more(message, context):
        reply = client_app.train(message, context)
        reply.content["metrics"] = MetricRecord({"loss": 0.5})
        return reply

    _, grid = start(one_step, masked_app(more), masked)
    assert "secagg_mod: secure aggregation needs replies with the arrays of the request and num-examples alone" in reasons(grid)
    _, grid = start(one_step, masked_app(client_app.train, defense_mod("gradient", defense="prun")), masked)
    assert any(why.startswith("secagg_mod: defense_mod: ") and "did you mean 'prune'" in why for why in reasons(grid))


def test_a_run_that_asks_for_it_goes_through_the_protocol(small, tmp_path):
    settings = {"rounds": 3, "capture": "1", "optimizer": "sgd(lr=1)"}
    plain, secure = (
        go(small.changed(visibility=kind, run_dir=str(tmp_path / kind), **settings)) for kind in ("aggregate", "secagg")
    )
    assert not same(weights_of(plain), weights_of(secure))
    for name, value in weights_of(plain).items():
        torch.testing.assert_close(weights_of(secure)[name], value, rtol=0, atol=1e-3)
    (mean,), (seen,) = captures_of(plain), captures_of(secure)
    assert (seen.visibility, seen.client, seen.num_examples) == ("aggregate", -1, small.clients * small.batch_size)
    assert all((seen.update[name] - value).abs().max() < 2 * STEP for name, value in mean.update.items())
    # What each round cost: eight bytes for an entry in place of four, and the keys.
    first, last = (run.metrics()[-1] for run in (plain, secure))
    size = 4 * small.clients * sum(value.numel() for value in weights_of(plain).values())
    assert first["sent_bytes"] == first["received_bytes"] == size
    assert size < last["sent_bytes"] < 1.2 * size
    assert 2 * size < last["received_bytes"] < 2.2 * size
    assert last["clients_seconds"] > 0


def test_a_reply_that_is_not_of_the_protocol_does_not_end_the_run(one_step, caplog):
    def wrong(message, context, call_next):
        reply = secagg_mod(message, context, call_next)
        if context.node_config["partition-id"] == 1 and Key.PUBLIC_KEY_1 in reply.content.get(RECORD_KEY_CONFIGS, {}):
            reply.content[RECORD_KEY_CONFIGS] = ConfigRecord({"nonsense": 1})
        return reply

    app = ClientApp(mods=[wrong])
    app.train()(client_app.train)
    app.query("identify")(client_app.identify)
    weights, _ = start(one_step, app, masked)
    assert weights == {}
    assert "a reply is not of the protocol: KeyError" in caplog.text
