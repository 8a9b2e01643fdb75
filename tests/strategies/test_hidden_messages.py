"""What servers of hidden aggregations ask for, and what they take for the sum of a round."""

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_app.core.wire import to_record, to_tensors
from fl_app.engines.inline import InlineGrid
from helpers.replies import good, make, tensors
from strategies.ckks import MOST_BYTES, SLOTS, Sum
from strategies.encrypted import RECORD, Encrypted
from strategies.hidden import CannotHide, Hidden, _as, arrays_of, shown, update_of

NAN = float("nan")
FINE = torch.tensor([0.0, 1.0]).double()


def answering(answers, asked):
    """A grid of clients that answer to anything with a sum, and keep what they were asked."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        asked.append(dict(message.content[RECORD]))
        return Message(RecordDict({"arrays": to_record(answers[context.node_config["partition-id"]])}), reply_to=message)

    return InlineGrid(app, len(answers), {})


@pytest.fixture
def server():
    return Encrypted(make(lambda *_: good(1))[0], max_examples=8)


def test_the_first_that_opens_a_sum_to_as_many_finite_numbers_is_believed(server, caplog):
    strange = [{"sum": torch.tensor([NAN, 1.0]).double()}, {"sum": FINE.float()}, {"sum": FINE[:1]}, {"other": FINE}]
    asked = []
    grid = answering([*strange, {"sum": FINE}, {"sum": FINE + 1}], asked)
    assert torch.equal(server._opened(1, Sum(2), "k", [1, 2, 3, 4, 5, 6], grid), FINE)
    assert len(asked) == 5
    assert asked[0] == {"stage": "open", "sealed": [], "entries": 2, "key": "k"}
    assert caplog.text.count("it does not answer with 2 finite numbers") == 4
    assert server._opened(1, Sum(2), "k", [1, 2], grid) is None


def test_replies_may_be_as_long_as_their_ciphertexts(server):
    asked = []
    grid = answering([{"sum": FINE}] * 3, asked)
    plain, other = make(lambda *_: good(1))
    requests = {one.metadata.dst_node_id: one for one in plain.configure_train(1, to_record(tensors(0)), ConfigRecord(), other)}
    for entries, bytes_ in ((1, MOST_BYTES), (SLOTS, MOST_BYTES), (SLOTS + 1, 2 * MOST_BYTES)):
        asked.clear()
        assert len(server._ask(requests, entries, grid)) == 3
        assert asked == [{"stage": "seal", "most-examples": 8, "clients": 3, "reply-bytes": bytes_}] * 3


def test_means_of_whole_numbers_are_rounded():
    mean = torch.tensor([1.6, 2.4, -1.5])
    assert _as(mean, torch.int64).tolist() == [2, 2, -2]
    assert torch.equal(_as(mean.double(), torch.float32), mean)


def message(**records):
    return Message(RecordDict(records), 1, "train")


ARRAYS, COUNT = to_record({"b": torch.ones(2), "a": torch.zeros(1)}), MetricRecord({"num-examples": 3, "loss": 0.5})


@pytest.mark.usefixtures("identity")
def test_a_message_to_hide_has_one_array_record():
    assert arrays_of(message(x=ARRAYS, m=COUNT)) is ARRAYS
    for records in ({}, {"x": ARRAYS, "y": ARRAYS}):
        with pytest.raises(CannotHide, match=f"not {len(records)}"):
            arrays_of(message(**records))


@pytest.mark.usefixtures("identity")
def test_an_update_to_hide_is_in_the_order_of_the_request():
    request = message(arrays=to_record({"a": torch.zeros(1), "b": torch.zeros(2)}))
    arrays, number = update_of(request, message(arrays=ARRAYS, metrics=COUNT))
    assert (list(arrays), number) == (["a", "b"], 3)
    strange = [
        {"arrays": to_record({"a": torch.zeros(1)}), "metrics": COUNT},
        {"arrays": ARRAYS},
        {"arrays": ARRAYS, "metrics": COUNT, "more": COUNT},
        {"arrays": ARRAYS, "metrics": MetricRecord({"num-examples": 3.0})},
    ]
    for records in strange:
        with pytest.raises(CannotHide, match="needs replies with the arrays of the request"):
            update_of(request, message(**records))
    request.metadata.__dict__["_message_id"] = "1"
    with pytest.raises(CannotHide, match="no data"):
        update_of(request, Message(Error(1, "no data"), reply_to=request))


class Inside:
    """A strategy that asks these nodes, and answers each call with its name and what it was given."""

    def __init__(self, nodes):
        self.nodes, self.summed = nodes, 0

    def configure_train(self, *given):
        self.given = given
        return [Message(RecordDict({"arrays": ARRAYS}), node, "train") for node in self.nodes]

    def summary(self):
        self.summed += 1

    def __getattr__(self, name):
        return lambda *given: (name, *given)


class Told(Hidden):
    def exchange(self, server_round, requests, grid):
        return [server_round, list(requests), grid]


@pytest.mark.usefixtures("identity")
def test_the_strategy_inside_is_shown_what_the_exchange_gave_and_that_once():
    inner = Inside([4, 2])
    strategy = Told(inner)
    assert strategy.configure_train(7, "arrays", "config", "grid") == []
    assert inner.given == (7, "arrays", "config", "grid")
    assert strategy.aggregate_train(7, ["ignored"]) == ("aggregate_train", 7, [7, [4, 2], "grid"])
    assert strategy.aggregate_train(8, []) == ("aggregate_train", 8, [])
    assert strategy.configure_evaluate(1, "a", "c", "g") == ("configure_evaluate", 1, "a", "c", "g")
    assert strategy.aggregate_evaluate(1, "r") == ("aggregate_evaluate", 1, "r")
    strategy.summary()
    assert inner.summed == 1
    nobody = Told(Inside([]))
    nobody.configure_train(1, "arrays", "config", "grid")
    assert nobody.aggregate_train(1, []) == ("aggregate_train", 1, [])


@pytest.mark.usefixtures("identity")
def test_what_is_shown_has_the_names_and_types_of_the_request_and_everybodys_own_number():
    asked = to_record({"w": torch.zeros(2), "count": torch.tensor(3), "half": torch.zeros(1, dtype=torch.float16)})
    requests = {}
    for node in (5, 6, 7):
        requests[node] = Message(RecordDict({"arrays": asked}), node, "train")
        requests[node].metadata.__dict__["_message_id"] = str(node)
    mean = {"half": torch.ones(1), "count": torch.tensor(3.6), "w": torch.tensor([1.5, 2.5]).double()}
    replies = shown(requests, {7: 2, 5: 9}, mean)
    assert [(one.metadata.src_node_id, one.metadata.reply_to_message_id) for one in replies] == [(7, "7"), (5, "5")]
    assert [dict(one.content["metrics"]) for one in replies] == [{"num-examples": 2}, {"num-examples": 9}]
    for one in replies:
        found = to_tensors(one.content["arrays"])
        assert [(name, value.dtype, value.tolist()) for name, value in found.items()] == [
            ("w", torch.float32, [1.5, 2.5]),
            ("count", torch.int64, 4),
            ("half", torch.float16, [1.0]),
        ]
