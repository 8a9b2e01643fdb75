"""The hook: it changes nothing, keeps what was sent and nothing else, and its troubles stay its own."""

import logging
import random

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fl_app.core.local import LocalRule
from fl_app.core.wire import to_record, to_tensors
from fl_app.engines.inline import InlineGrid
from fl_app.store.captures import Captures
from helpers.engines import StopAt, captures_of, go, same, weights_of
from helpers.replies import RULE, SHAPES, good, make, tensors
from strategies import Curious, Resumed

DELTA = LocalRule(kind="delta", batch_size=4, steps=2, lr=0.1)


def rounds_of(strategy, grid, rounds=1, weights=None):
    weights = weights or to_record(tensors(0))
    for server_round in range(1, rounds + 1):
        replies = grid.send_and_receive(strategy.configure_train(server_round, weights, ConfigRecord(), grid))
        weights = strategy.aggregate_train(server_round, iter(replies))[0] or weights
    return to_tensors(weights)


@pytest.mark.parametrize(
    "settings",
    [
        {"capture": "all"},
        {"capture": "2", "clients": 5, "fraction": 0.4},
        {"capture": "all", "visibility": "aggregate"},
        {"capture": "all", "update": "delta", "local_steps": 2},
    ],
    ids=str,
)
def test_the_hook_changes_nothing(small, tmp_path, settings):
    plain = go(small.changed(**{**settings, "capture": "none"}, run_dir=str(tmp_path / "plain")))
    watched = go(small.changed(**settings, run_dir=str(tmp_path / "watched")))
    assert same(weights_of(plain), weights_of(watched))
    assert not (plain.path / "captures").exists()
    assert captures_of(watched)


def test_captures_are_the_gradients_on_the_weights_of_their_round(small):
    from fl_app.core.local import local_update
    from fl_app.experiment.assets import assets_of

    seen = captures_of(go(small.changed(capture="1,4-5", capture_clients="0,2")))
    assert [(one.server_round, one.client) for one in seen] == [(r, c) for r in (1, 4, 5) for c in (0, 2)]
    assets = assets_of(small)
    for one in seen:
        x, y = assets.batch(one.client, one.server_round)
        assert same(one.update, local_update(assets.model, one.params, x, y, small.rule))
        assert (one.num_examples, one.rule, one.node_id) == (4, small.rule, one.client + 1)
    assert not same(seen[0].params, seen[2].params)


def test_the_aggregate_is_the_weighted_mean_and_shows_no_client(tmp_path):
    fedsgd, grid = make(lambda client, _: good(client + 1, 2 ** (client + 1)))
    handed = []
    hook = Curious(fedsgd, Captures(tmp_path), RULE, visibility="aggregate", on_capture=handed.append)
    rounds_of(hook, grid)
    ((one,), damaged) = Captures(tmp_path).read_all()
    assert damaged == []
    assert [path.name for path in (tmp_path / "round-0001").iterdir() if path.name != "model.safetensors"] == [
        "aggregate.safetensors"
    ]
    assert (one.client, one.node_id, one.num_examples, one.visibility) == (-1, 0, 14, "aggregate")
    for name, value in one.update.items():
        torch.testing.assert_close(value, torch.full(SHAPES[name], (1 * 2 + 2 * 4 + 3 * 8) / 14))
    assert same(handed[0].update, one.update)


def test_the_aggregate_is_the_mean_that_the_strategy_steps_along(small):
    """With sgd(lr=1) the next weights are these minus the mean, to the last bit."""
    run = go(small.changed(capture="all", visibility="aggregate", optimizer="sgd(lr=1)", rounds=3, min_clients=1))
    seen = captures_of(run)
    after = [*(one.params for one in seen[1:]), weights_of(run)]
    for one, weights in zip(seen, after, strict=True):
        assert same({name: value - one.update[name] for name, value in one.params.items()}, weights)


def test_only_those_who_were_asked_are_captured(small):
    run = go(small.changed(clients=5, fraction=0.4, capture="all"))
    by_round = {}
    for one in captures_of(run):
        by_round.setdefault(one.server_round, []).append(one.client)
    fedsgd, _ = make(None, clients=5, fraction=0.4, seed=small.seed)
    assert by_round == {r: fedsgd.chosen(r) for r in range(1, small.rounds + 1)}


def test_rejected_replies_are_not_captured(tmp_path, caplog):
    def answer(client, _):
        if client == 0:
            raise RuntimeError("no data")
        bad = {1: tensors(float("nan")), 2: {"a": torch.zeros(1), "b": torch.zeros(4)}, 3: tensors(1)}[min(client, 3)]
        return to_record(bad), MetricRecord({"num-examples": 99 if client == 3 else 8})

    fedsgd, grid = make(answer, clients=5)
    hook = Curious(fedsgd, Captures(tmp_path), RULE)
    with caplog.at_level(logging.WARNING):
        rounds_of(hook, grid, rounds=3)
    assert {path.name for path in Captures(tmp_path).paths()} == {"client-04.safetensors"}
    assert fedsgd.last_counts == {"accepted": 1, "rejected": 4, "applied": 1}
    ours = [record.message for record in caplog.records if "is not captured" in record.message]
    assert len(ours) == 4
    for reason in ("no data", "not finite", "has the shape", "num-examples is 99"):
        assert sum(reason in message for message in ours) == 1


def test_strangers_and_second_replies_are_not_captured(tmp_path):
    fedsgd, grid = make(lambda client, _: good(client), clients=3, fraction=0.3)
    handed = []
    hook = Curious(fedsgd, Captures(tmp_path), RULE, on_capture=handed.append)
    (message,) = hook.configure_train(1, to_record(tensors(0)), ConfigRecord(), grid)
    asked = message.metadata.dst_node_id
    others = [Message(message.content, node, "train") for node in grid.get_node_ids() if node != asked]
    hook.aggregate_train(1, grid.send_and_receive([message, message, *others]))
    assert [one.node_id for one in handed] == [asked]
    assert fedsgd.last_counts["rejected"] == 3


def test_what_is_done_with_a_capture_stays_outside(tmp_path, caplog):
    def spoil(one):
        for value in (*one.params.values(), *one.update.values()):
            value.fill_(torch.nan)
        raise RuntimeError("the attack failed")

    fedsgd, grid = make(lambda client, r: good(client + r))
    expected = rounds_of(fedsgd, grid, 4)
    fedsgd, grid = make(lambda client, r: good(client + r))
    assert same(rounds_of(Curious(fedsgd, Captures(tmp_path), RULE, on_capture=spoil), grid, 4), expected)
    assert [len(part) for part in Captures(tmp_path).read_all()] == [12, 0]
    assert caplog.text.count("handing on a capture failed: RuntimeError: the attack failed") == 1


def fedavg_app(weights_key="arrays"):
    """Clients that train a little and reply with weights, as in Flower's quickstart."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        params = message.content["arrays"].to_torch_state_dict()
        new = {name: value + 0.25 * (client + 1) if value.is_floating_point() else value + 1 for name, value in params.items()}
        metrics = MetricRecord({"num-examples": 10 * (client + 1), "loss": 0.5})
        return Message(RecordDict({weights_key: ArrayRecord(new), "metrics": metrics}), reply_to=message)

    return app


@pytest.mark.parametrize("visibility", ["individual", "aggregate"])
def test_a_strategy_that_is_not_ours(tmp_path, visibility):
    weights = ArrayRecord({"w": torch.ones(3, 2), "b": torch.zeros(2), "count": torch.tensor(4)})
    finals = []
    for captures in (None, Captures(tmp_path)):
        random.seed(1)  # FedAvg samples with it, and sums in that order
        inner = FedAvg(fraction_evaluate=0.0)
        hook = Curious(inner, captures, DELTA, payload="weights", visibility=visibility) if captures else inner
        result = hook.start(InlineGrid(fedavg_app(), 3, {}), weights, num_rounds=2)
        finals.append(result.arrays.to_torch_state_dict())
    assert same(*finals)
    seen, damaged = Captures(tmp_path).read_all()
    assert damaged == []
    if visibility == "aggregate":
        assert [(one.client, one.num_examples) for one in seen] == [(-1, 60)] * 2
        torch.testing.assert_close(seen[0].update["w"], torch.full((3, 2), (0.25 * 10 + 0.5 * 20 + 0.75 * 30) / 60))
    else:
        assert [(one.server_round, one.client, one.node_id) for one in seen] == [
            (r, c, c + 1) for r in (1, 2) for c in range(3)
        ]
        for one in seen:
            # Not equal: this is what the subtraction of float32 weights costs.
            torch.testing.assert_close(one.update["w"], torch.full((3, 2), 0.25 * (one.client + 1)), rtol=1e-5, atol=0)
            assert one.num_examples == 10 * (one.client + 1)
    assert all(one.update["count"] == 1 for one in seen if one.server_round == 1)  # FedAvg then makes it a float


def saying_app(partition, examples=lambda _: 4):
    """Clients whose replies name partition(client) as theirs, unless it is None."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        number = partition(client)
        said = {"num-examples": examples(client)} | ({} if number is None else {"partition-id": number})
        new = {name: value + client + 1 for name, value in message.content["arrays"].to_torch_state_dict().items()}
        return Message(RecordDict({"arrays": ArrayRecord(new), "metrics": MetricRecord(said)}), reply_to=message)

    return app


def test_a_client_that_comes_later_has_the_number_that_it_names(tmp_path):
    class Growing(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            messages = super().configure_train(server_round, arrays, config, grid)
            return [message for message in messages if message.metadata.dst_node_id <= server_round]

    hook = Curious(Growing(fraction_evaluate=0.0), Captures(tmp_path), DELTA, payload="weights")
    app = saying_app(lambda client: (7, 9, 7)[client])  # the third names a number that is taken
    hook.start(InlineGrid(app, 3, {}), ArrayRecord({"w": torch.zeros(2)}), num_rounds=3)
    seen = Captures(tmp_path).read_all()[0]
    assert [(one.server_round, one.node_id, one.client) for one in seen] == [
        (1, 1, 7),
        *((r, node, number) for r in (2, 3) for node, number in ((1, 7), (2, 9))),
    ]


def watched(folder, app, rule=DELTA, rounds=2):
    hook = Curious(FedAvg(fraction_evaluate=0.0), Captures(folder), rule, payload="weights")
    hook.start(InlineGrid(app, 3, {}), ArrayRecord({"w": torch.zeros(2)}), num_rounds=rounds)
    return Captures(folder).read_all()[0]


@pytest.mark.parametrize(
    ("partition", "numbers"),
    [
        (lambda client: 2 - client, {1: 2, 2: 1, 3: 0}),
        (lambda _: None, {1: 0, 2: 1, 3: 2}),
        (lambda client: -1 if client == 1 else 2 - client, {1: 0, 2: 1, 3: 2}),
        (lambda _: 1, {1: 0, 2: 1, 3: 2}),
        (lambda client: -1 - client, {1: 0, 2: 1, 3: 2}),
    ],
    ids=["all say it", "none", "not all", "the same", "impossible"],
)
def test_clients_have_the_numbers_that_their_replies_name(tmp_path, caplog, partition, numbers):
    seen = watched(tmp_path, saying_app(partition))
    assert {(one.server_round, one.node_id): one.client for one in seen} == {
        (server_round, node): number for server_round in (1, 2) for node, number in numbers.items()
    }
    by_node = numbers[1] == 0
    assert caplog.text.count("clients are numbered by node id (client 0 is node 1, client 1 is node 2") == by_node


def test_steps_of_a_client_follow_from_its_examples(tmp_path, caplog):
    rule = LocalRule(kind="delta", batch_size=2, steps=4, lr=0.1, examples=4, momentum=0.9)
    seen = watched(tmp_path, saying_app(lambda client: client, lambda client: (4, 8, 3)[client]), rule)
    steps = {one.client: one.rule for one in seen}
    assert steps[0] == rule
    assert steps[1] == LocalRule(kind="delta", batch_size=2, steps=8, lr=0.1, examples=8, momentum=0.9)
    assert steps[2] == rule  # two epochs with a short last batch each: cannot be told
    assert caplog.text.count("3 examples instead of 4: how many steps these are cannot be told") == 1
    assert caplog.text.count("with 8 examples it is taken to be LocalRule(kind='delta', batch_size=2, steps=8") == 1


def test_clients_that_are_sent_other_weights_are_captured_with_them(tmp_path, caplog):
    class Targeted(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for message in super().configure_train(server_round, arrays, config, grid):
                if message.metadata.dst_node_id == 2:
                    other = RecordDict({"arrays": ArrayRecord({"w": torch.full((2,), 9.0)}), "config": config})
                    message = Message(other, 2, "train")
                yield message

    for visibility, expected in (("individual", {1: 0.0, 2: 9.0, 3: 0.0}), ("aggregate", {})):
        captures = Captures(tmp_path / visibility)
        hook = Curious(Targeted(fraction_evaluate=0.0), captures, DELTA, payload="weights", visibility=visibility)
        hook.start(InlineGrid(fedavg_app(), 3, {}), ArrayRecord({"w": torch.zeros(2)}), num_rounds=1)
        assert {one.node_id: one.params["w"][0].item() for one in captures.read_all()[0]} == expected
    assert "round 1 is not captured: an aggregate over different weights explains no example" in caplog.text


def test_an_aggregate_over_weights_that_the_strategy_made_itself_is_captured(tmp_path, caplog):
    class Moved(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            moved = ArrayRecord({"w": torch.full((2,), 9.0)})
            return super().configure_train(server_round, moved, config, grid)

    hook = Curious(Moved(fraction_evaluate=0.0), Captures(tmp_path), DELTA, payload="weights", visibility="aggregate")
    hook.start(InlineGrid(fedavg_app(), 3, {}), ArrayRecord({"w": torch.zeros(2)}), num_rounds=1)
    ((one,), _) = Captures(tmp_path).read_all()
    assert one.params["w"].tolist() == [9.0, 9.0]
    assert "is not captured" not in caplog.text


def test_the_settings_of_the_hook_are_checked(tmp_path):
    fedsgd, _ = make(None)
    for settings in ({"visibility": "aggregate", "clients": {1}}, {"payload": "weights"}):
        with pytest.raises(ValueError, match=r"sees no single clients|kind 'delta'"):
            Curious(fedsgd, Captures(tmp_path), RULE, **settings)


def test_a_resumed_run_captures_the_true_rounds(small, tmp_path):
    whole = captures_of(go(small.changed(capture="all", run_dir=str(tmp_path / "whole"))))
    broken = small.changed(capture="all", run_dir=str(tmp_path / "broken"))
    go(broken, watcher=StopAt(2))
    seen = captures_of(go(broken, resume=True))
    assert [one.server_round for one in seen] == [r for r in range(1, 7) for _ in range(3)]
    for a, b in zip(whole, seen, strict=True):
        assert same(a.update, b.update)
        assert same(a.params, b.params)
    assert isinstance(Resumed(make(None)[0], 2).strategy, type(make(None)[0]))
