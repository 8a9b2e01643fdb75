"""The server's grid: who is sent packed messages, and what stands for a reply that does not come or cannot be read."""

import time

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from fl_app.core.wire import to_record
from fl_app.engines.grpc import packing
from fl_app.engines.grpc.grid import AdaptiveGrid
from helpers.deploy_messages import TENSORS, damaged, equal

pytestmark = pytest.mark.usefixtures("identity")


class Nodes(Grid):
    """Nodes that answer at the third look; those in `packing` speak the packed format."""

    def __init__(self, packing_nodes=(), answer=None):
        self.packing, self.answer = set(packing_nodes), answer or (lambda message: None)
        self.sent, self.looks = [], 0

    def set_run(self, run):
        self._run = run

    @property
    def run(self):
        return self._run

    def create_message(self, *_):
        raise NotImplementedError

    def get_node_ids(self):
        return [1, 2]

    def push_messages(self, messages):
        self.sent = list(messages)
        for number, message in enumerate(self.sent):
            message.metadata.__dict__["_message_id"] = f"m{number}"
        return [message.metadata.message_id for message in self.sent]

    def pull_messages(self, message_ids):
        self.looks += 1
        return [] if self.looks % 3 else [self.reply(m) for m in self.sent if m.metadata.message_id in message_ids]

    def reply(self, message):
        special = self.answer(message)
        if special is not None:
            return special
        reply = Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)
        if message.metadata.dst_node_id in self.packing and not packing.is_packed(message.content["arrays"]):
            packing.announce(reply)
        return reply

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("Flower's own polling is not used")


def ask(grid):
    messages = [Message(RecordDict({"arrays": to_record(TENSORS)}), node, "train") for node in (1, 2)]
    return list(grid.send_and_receive(messages, timeout=20))


def test_the_grid_packs_for_nodes_that_can_read_it_and_no_other():
    nodes = Nodes(packing_nodes=[1])
    grid = AdaptiveGrid(nodes)
    for packed in (set(), {1}, {1}):
        replies = ask(grid)
        assert {m.metadata.dst_node_id for m in nodes.sent if packing.is_packed(m.content["arrays"])} == packed
        assert len(replies) == 2
        assert all(equal(reply.content["arrays"], TENSORS) and len(reply.content) == 1 for reply in replies)


def test_a_node_that_fails_is_sent_plain_messages_again():
    nodes = Nodes(packing_nodes=[1, 2])
    grid = AdaptiveGrid(nodes)
    ask(grid)
    nodes.answer = lambda message: Message(Error(0, "no"), reply_to=message)
    assert all(reply.has_error() for reply in ask(grid))
    nodes.answer = lambda message: None
    ask(grid)
    assert not any(packing.is_packed(message.content["arrays"]) for message in nodes.sent)


def test_a_damaged_packed_reply_does_not_stop_the_others():
    def answer(message):
        if message.metadata.dst_node_id == 1:
            return Message(RecordDict({"arrays": damaged(b"\x01")}), reply_to=message)
        return None

    replies = ask(AdaptiveGrid(Nodes(answer=answer)))
    assert [packing.is_packed(reply.content["arrays"]) for reply in replies] == [True, False]


def test_the_grid_gives_up_at_its_timeout():
    nodes = Nodes()
    nodes.pull_messages = lambda _: []
    began = time.monotonic()
    message = Message(RecordDict({"arrays": to_record(TENSORS)}), 1, "train")
    (reply,) = AdaptiveGrid(nodes).send_and_receive([message], timeout=0.2)
    assert (reply.metadata.src_node_id, reply.error.reason) == (1, "no reply within 0.2 s")
    assert 0.2 <= time.monotonic() - began < 5
