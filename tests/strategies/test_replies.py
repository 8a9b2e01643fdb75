"""What replies say and show together; and the wrappers that hand every call on."""

import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from fl_app.core.local import LocalRule
from fl_app.core.observation import Knowledge, Observation
from fl_app.store.captures import Captures
from strategies import Curious, Resumed
from strategies.replies import aggregate, difference, equal, own, partition_of

RULE = LocalRule(batch_size=8)


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize(
    ("records", "number"),
    [
        ({"metrics": MetricRecord({"partition-id": 3})}, 3),
        ({"config": ConfigRecord({"partition-id": 0})}, 0),
        ({"metrics": MetricRecord({"loss": 1.0}), "config": ConfigRecord({"partition-id": 2})}, 2),
        ({"metrics": MetricRecord({"partition-id": 10**9})}, 10**9),
        ({"metrics": MetricRecord({"partition-id": 10**9 + 1})}, None),
        ({"metrics": MetricRecord({"partition-id": -1})}, None),
        ({"metrics": MetricRecord({"partition-id": 1.0})}, None),
        ({"config": ConfigRecord({"partition-id": True})}, None),
        ({"config": ConfigRecord({"partition-id": "1"})}, None),
        ({"metrics": MetricRecord({"loss": 1.0})}, None),
        ({}, None),
    ],
)
def test_a_partition_is_a_whole_number_that_a_reply_names(records, number):
    assert partition_of(Message(RecordDict(records), 1, "train")) == number


def seen_of(value, number, client):
    update = {"w": torch.tensor([value, 1.0]), "count": torch.tensor(int(value)), "half": torch.tensor(value).half()}
    return Observation(
        params={name: torch.zeros_like(one) for name, one in update.items()},
        update=update,
        rule=RULE,
        num_examples=number,
        server_round=5,
        client=client,
        knowledge=Knowledge(defense="prune"),
    )


def test_an_aggregate_is_the_weighted_mean_and_names_no_client():
    first, second = seen_of(2.0, 6, 3), seen_of(5.0, 2, 4)
    one = aggregate([first, second])
    assert one.update["w"].tolist() == pytest.approx([(2 * 6 + 5 * 2) / 8, 1.0])
    assert (one.update["count"].item(), one.update["count"].dtype) == (3, torch.int64)  # 2.75, rounded
    assert (one.update["half"].item(), one.update["half"].dtype) == (2.75, torch.float16)
    assert (one.num_examples, one.server_round, one.client, one.node_id, one.visibility) == (8, 5, -1, 0, "aggregate")
    assert one.params is first.params
    assert (one.rule, one.knowledge) == (RULE, first.knowledge)
    assert first.update["w"].tolist() == [2.0, 1.0]


def test_copies_are_apart_from_what_was_copied():
    tensors = {"w": torch.ones(2, requires_grad=True)}
    copies = own(tensors)
    copies["w"].zero_()
    assert tensors["w"].tolist() == [1.0, 1.0]
    assert not copies["w"].requires_grad


def test_a_difference_of_truth_values_is_where_they_differ():
    assert difference(torch.tensor([True, True, False]), torch.tensor([True, False, False])).tolist() == [False, True, False]
    assert difference(torch.tensor([3.0]), torch.tensor([1.0])).tolist() == [2.0]


def test_weights_are_equal_if_names_and_values_are():
    weights = {"a": torch.ones(2), "b": torch.zeros(1)}
    assert equal(weights, own(weights))
    assert not equal(weights, {"a": torch.ones(2)})
    assert not equal({"a": torch.ones(2)}, weights)
    assert not equal(weights, weights | {"b": torch.ones(1)})


class Listener(Strategy):
    """Answers every call with what it was called with."""

    def configure_train(self, *words):
        return [("configure_train", *words)]

    def aggregate_train(self, *words):
        return "aggregate_train", *words

    def configure_evaluate(self, *words):
        return "configure_evaluate", *words

    def aggregate_evaluate(self, *words):
        return "aggregate_evaluate", *words

    def summary(self):
        self.said = True


@pytest.mark.parametrize("kind", ["curious", "resumed"])
def test_wrappers_hand_every_call_on(kind, tmp_path):
    inner = Listener()
    wrapper = Curious(inner, Captures(tmp_path), RULE) if kind == "curious" else Resumed(inner, 7)
    done = 7 if kind == "resumed" else 0
    assert wrapper.configure_evaluate(2, "arrays", "config", "grid") == (
        "configure_evaluate",
        done + 2,
        "arrays",
        "config",
        "grid",
    )
    assert wrapper.aggregate_evaluate(3, "replies") == ("aggregate_evaluate", done + 3, "replies")
    if kind == "resumed":
        assert wrapper.configure_train(2, "arrays", "config", "grid") == [("configure_train", 9, "arrays", "config", "grid")]
        assert wrapper.aggregate_train(3, "replies") == ("aggregate_train", 10, "replies")
    wrapper.summary()
    assert inner.said
