"""Edges of FedSGD and of the hook, one cheap case each: what is just allowed, what is said, and what goes on."""

import re

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from torch import nn

from fl_app.core.local import LocalRule
from fl_app.core.observation import Knowledge
from fl_app.core.wire import to_record, to_tensors
from helpers.engines import same
from helpers.replies import RULE, good, make, tensors
from strategies import Curious, FedDelta
from strategies.ckks import Key
from strategies.crafts import fishing
from strategies.curious import MOST_REASONS
from strategies.fedsgd import Rejected, read_update

DELTA = LocalRule(kind="delta", batch_size=4, steps=2, lr=0.1)


def asked(strategy, grid, server_round=1, value=0.0):
    return list(strategy.configure_train(server_round, to_record(tensors(value)), ConfigRecord({"k": 5}), grid))


def answered(strategy, grid, server_round=1, value=0.0):
    return strategy.aggregate_train(server_round, grid.send_and_receive(asked(strategy, grid, server_round, value)))


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize(("number", "allowed"), [(0, False), (1, True), (5, True), (6, False), (2.0, False)])
def test_a_reply_speaks_for_one_example_at_least_and_for_as_many_as_a_client_has(number, allowed):
    metrics = MetricRecord({"num-examples": 3, "own": number})
    message = Message(RecordDict({"arrays": to_record(tensors(1)), "metrics": metrics}), 1, "train")
    if not allowed:
        with pytest.raises(Rejected, match="not a whole number from 1 to 5"):
            read_update(message, tensors(0), 5, "own")
        return
    update, found = read_update(message, tensors(0), 5, "own")
    assert same(update, tensors(1))
    assert found == number
    assert read_update(message, tensors(0), 5)[1] == 3


@pytest.mark.usefixtures("identity")
def test_a_reply_brings_one_record_of_each_kind():
    arrays, metrics = good(1)
    for records in (
        {"a": arrays},
        {"m": metrics},
        {"a": arrays, "b": arrays, "m": metrics},
        {"a": arrays, "m": metrics, "n": metrics},
    ):
        with pytest.raises(Rejected, match="not one each"):
            read_update(Message(RecordDict(records), 1, "train"), tensors(0), 8)


def test_clients_are_told_the_rule_the_round_and_what_the_run_says():
    strategy, grid = make(None)
    for message in asked(strategy, grid, 7):
        told = dict(message.content["config"])
        assert told == {"k": 5, **RULE.to_dict(), "server-round": 7}
        assert message.metadata.message_type == "train"


def test_clients_that_are_chosen_and_away_are_named_and_the_others_asked(caplog):
    strategy, grid = make(None)
    asked(strategy, grid)
    assert caplog.messages == []
    del grid.contexts[2]
    assert [message.metadata.dst_node_id for message in asked(strategy, grid, 4)] == [1, 3]
    assert caplog.messages == ["round 4: clients [1] are not connected"]


@pytest.mark.parametrize("least", [0, 1, 2])
def test_as_many_replies_as_are_needed_are_enough(least):
    strategy, grid = make(lambda client, _: good(1) if client < least else 1 / 0, min_clients=least)
    arrays, metrics = answered(strategy, grid)
    assert (arrays is not None) == bool(least)
    assert metrics["applied"] == int(bool(least))


def test_who_is_rejected_is_named_with_the_reason():
    strategy, grid = make(lambda client, _: good(1, 9) if client == 1 else good(torch.inf if client == 2 else 1))
    messages = asked(strategy, grid)
    replies = list(grid.send_and_receive(messages))
    del strategy.roster.client_of[1]  # asked, and gone since
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert arrays is None
    assert dict(metrics) == {"accepted": 0, "rejected": 3, "applied": 0}
    assert strategy.last_reasons.keys() == {"on node 1", "1", "2"}
    assert "not asked" in strategy.last_reasons["on node 1"]
    assert "not finite" in strategy.last_reasons["2"]
    answered(strategy, grid)
    assert strategy.last_reasons.keys() == {"1", "2"}, "of the last round alone"


@pytest.mark.parametrize(
    ("answer", "counts"), [(good, {"accepted": 3, "rejected": 0}), (None, {"accepted": 0, "rejected": 3, "applied": 0})]
)
def test_replies_that_are_only_counted_change_no_weights(answer, counts):
    strategy, grid = make(lambda *_: answer(1) if answer else 1 / 0)
    metrics = strategy.count(1, grid.send_and_receive(asked(strategy, grid)))
    assert dict(metrics) == strategy.last_counts == counts
    arrays, _ = strategy.aggregate_train(1, make(lambda *_: good(2))[1].send_and_receive(asked(strategy, grid, value=5.0)))
    assert same(to_tensors(arrays), tensors(3))


def test_weights_that_are_not_finite_are_noticed():
    strategy, grid = make(lambda *_: good(1), clients=1)
    assert strategy.finite()
    answered(strategy, grid)
    assert strategy.finite()
    for value in (torch.nan, torch.inf):
        asked(strategy, grid, value=value)
        assert not strategy.finite()


@pytest.mark.parametrize("restored", [False, True])
def test_momentum_begins_at_what_was_restored_or_at_nothing(restored):
    strategy, grid = make(lambda *_: good(1), optimizer="sgd(lr=1, momentum=0.5)")
    if restored:
        strategy.restore_optimizer({"momentum_buffer": torch.full((10,), 2.0)})
    assert len(strategy.optimizer_state()) == restored
    arrays, _ = answered(strategy, grid)
    assert same(to_tensors(arrays), tensors(-2 if restored else -1))
    assert strategy.optimizer_state()["momentum_buffer"].tolist() == [2.0 if restored else 1.0] * 10


def test_clients_evaluate_nothing():
    strategy, grid = make(None)
    assert strategy.configure_evaluate(1, None, None, grid) == []
    assert strategy.aggregate_evaluate(1, []) is None


class Kept(list):
    """Keeps observations in memory."""

    def write(self, observation):
        self.append(observation)


class Full:
    def write(self, observation):
        raise OSError("no room")


def test_rounds_and_clients_that_are_not_asked_for_are_not_kept():
    strategy, grid = make(lambda client, _: good(client))
    kept, knowledge = Kept(), Knowledge(repeats=True)
    hook = Curious(strategy, kept, RULE, rounds={2, 3}, clients={0, 2}, knowledge=knowledge)
    for server_round in (1, 2, 4, 3):
        answered(hook, grid, server_round)
    assert [(one.server_round, one.client, one.node_id) for one in kept] == [(2, 0, 1), (2, 2, 3), (3, 0, 1), (3, 2, 3)]
    assert all(one.knowledge is knowledge for one in kept)


def test_what_is_lost_is_counted_and_handed_on_all_the_same(caplog):
    strategy, grid = make(lambda client, _: good(client))
    handed = []
    hook = Curious(strategy, Full(), RULE, on_capture=handed.append)
    assert hook.lost == 0
    answered(hook, grid)
    assert hook.lost == 3
    assert [one.client for one in handed] == [0, 1, 2]
    assert len(caplog.messages) == 1, "said once"
    assert "a capture is lost" in caplog.text


@pytest.mark.parametrize("part", ["_watch", "_remember"])
def test_troubles_of_the_hook_are_said_and_training_goes_on(part, caplog, monkeypatch):
    strategy, grid = make(lambda *_: good(1))
    hook = Curious(strategy, Kept(), RULE)

    def broken(*given):
        raise RuntimeError("a bug")

    monkeypatch.setattr(hook, part, broken)
    arrays, _ = answered(hook, grid, 6)
    assert same(to_tensors(arrays), tensors(-1))
    assert caplog.messages == ["round 6 is not captured: RuntimeError: a bug (training goes on; said once)"]


def test_of_reasons_without_end_some_are_said(caplog):
    hook = Curious(make(None)[0], Kept(), RULE)
    for number in range(MOST_REASONS + 5):
        for _ in range(2):
            hook._complain("what", f"reason {number}", "details" * (number == 0))
    assert len(caplog.messages) == MOST_REASONS == 100
    assert caplog.messages[:2] == [f"what: {why} (training goes on; said once)" for why in ("details", "reason 1")]


class Copying(FedAvg):
    """Sends each client a record of its own, with the same weights."""

    def configure_train(self, server_round, arrays, config, grid):
        for message in super().configure_train(server_round, arrays, config, grid):
            own = {"arrays": ArrayRecord(arrays.to_torch_state_dict()), "config": config}
            yield Message(RecordDict(own), message.metadata.dst_node_id, "train")


@pytest.mark.parametrize("visibility", ["individual", "aggregate"])
def test_weights_that_are_the_same_are_kept_once_whoever_sent_them(visibility, caplog):
    kept = Kept()
    hook = Curious(Copying(fraction_evaluate=0.0), kept, RULE, visibility=visibility)
    answered(hook, make(lambda client, _: good(client))[1])
    assert len(kept) == (3 if visibility == "individual" else 1)
    assert len({id(one.params) for one in kept}) == 1
    assert not any(one.sent for one in kept)
    assert "is not captured" not in caplog.text


def test_new_weights_are_taken_only_of_clients_that_send_them():
    plain, deltas = make(None)[0], make(None, kind=FedDelta, rule=DELTA)[0]
    for strategy, rule in ((plain, RULE), (deltas, DELTA), (FedAvg(), RULE)):
        with pytest.raises(ValueError, match="needs a rule of kind 'delta'"):
            Curious(strategy, Kept(), rule, payload="weights")
    Curious(FedAvg(), Kept(), DELTA, payload="weights")
    with pytest.raises(ValueError, match="sees no single clients"):
        Curious(plain, Kept(), RULE, visibility="aggregate", clients=set())


def test_the_name_of_a_key_is_short_and_its_own():
    names = {Key.make().name for _ in range(2)}
    assert len(names) == 2
    assert all(re.fullmatch("[0-9a-f]{16}", name) for name in names)


def test_fishing_changes_the_last_layer_that_has_weights():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2), nn.Flatten(), nn.ReLU())
    assert fishing._last(model) == "1"
