"""What servers of hidden aggregations ask for, and what they take for the sum of a round."""

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_app.core.wire import to_record
from fl_app.engines.inline import InlineGrid
from helpers.replies import good, make, tensors
from strategies.ckks import MOST_BYTES, SLOTS, Sum
from strategies.encrypted import RECORD, Encrypted
from strategies.hidden import _as

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
