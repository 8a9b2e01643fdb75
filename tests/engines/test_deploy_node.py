"""The resident node: answers with the installed app, in the format that it was asked in, and survives what it is sent."""

import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run, RunNotRunningException

from fl_app.core.wire import to_record, to_tensors
from fl_app.engines.grpc import packing
from fl_app.engines.grpc.connection import Connection, NodeSettings
from fl_app.engines.grpc.node import Node, load_client_app
from helpers.deploy_messages import TENSORS, equal

pytestmark = pytest.mark.usefixtures("identity")

RUN = 77


class FakeLink:
    """A SuperLink with one message."""

    def __init__(self, message, fails=False):
        self.objects = {key: value.deflate() for key, value in get_all_nested_objects(message).items()}
        self.message, self.tree = message, get_object_tree(message)
        self.replies, self.confirmed, self.fails = {}, [], fails

    def connection(self):
        return Connection(5, lambda: None, self.send, None, None, lambda _, key: self.objects[key], self.push, self.confirm)

    def send(self, reply, tree, _):
        if self.fails:
            raise RunNotRunningException
        self.reply, self.replies = reply, {}
        return set(get_all_nested_objects(reply)), "session"

    def push(self, run_id, _session, key, content):
        self.replies[key] = content

    def confirm(self, run_id, key):
        self.confirmed.append(key)


def question(packed):
    message = Message(RecordDict({"arrays": to_record(TENSORS), "config": ConfigRecord({"n": 1})}), 5, "train")
    if packed:
        message.content = packing.pack_content(message.content, {})
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def node_for(link, answer):
    app = ClientApp()
    app.train()(answer)
    node = Node(link.connection(), app, {"partition-id": 0})
    node.contexts[link.message.metadata.run_id] = Context(RUN, 5, {}, RecordDict(), {})
    return node


def double(message, context):
    update = {name: 2 * value for name, value in to_tensors(message.content["arrays"]).items()}
    context.state["count"] = MetricRecord({"n": 1 + (context.state["count"]["n"] if "count" in context.state else 0)})
    return Message(RecordDict({"arrays": to_record(update)}), reply_to=message)


@pytest.mark.parametrize("packed", [False, True])
def test_a_node_answers_in_the_format_it_was_asked_in(packed):
    link = FakeLink(question(packed))
    node = node_for(link, double)
    for count in (1, 2):  # the app's state stays with the node
        node.answer(link.message, link.tree)
        assert node.contexts[1].state["count"]["n"] == count
    content = link.reply.content
    assert packing.is_packed(content["arrays"]) == packed
    assert (packing.ANNOUNCEMENT in content) == (not packed)
    arrays = packing.unpack(content["arrays"]) if packed else content["arrays"]
    assert equal(arrays, {name: 2 * value for name, value in TENSORS.items()})
    assert link.replies.keys() == get_all_nested_objects(link.reply).keys()
    assert link.confirmed[0] == link.message.metadata.message_id


def test_an_app_that_fails_is_an_error_reply_and_the_node_goes_on():
    def fail(message, context):
        raise ZeroDivisionError("oh")

    link = FakeLink(question(packed=True))
    node_for(link, fail).answer(link.message, link.tree)
    assert "ZeroDivisionError" in link.reply.error.reason


def test_a_run_that_ended_is_no_error():
    link = FakeLink(question(packed=True), fails=True)
    node_for(link, double).answer(link.message, link.tree)


def test_a_node_takes_settings_from_the_bundle_and_no_code():
    from fl_app.engines.grpc.link import bundle

    link = FakeLink(question(packed=False))
    content = bundle({"rounds": 3, "defense": "none"}, "os:system")

    class FabOnly:
        pass

    fab = FabOnly()
    fab.content = content
    connection = link.connection()._replace(get_run=lambda _: Run.create_empty(1), get_fab=lambda *_: fab)
    node = node_for(link, double)
    node.connection = connection
    node.contexts.clear()
    node.answer(link.message, link.tree)
    assert node.contexts[1].run_config["rounds"] == 3
    assert not link.reply.has_error()


@pytest.mark.parametrize("reference", ["no_such_module:app", "fl_app.client_app:nothing", "os:path", ":"])
def test_a_wrong_app_is_an_error_that_names_it(reference):
    with pytest.raises(ValueError, match=reference):
        load_client_app(reference)


def test_the_installed_app_is_found():
    assert isinstance(load_client_app(NodeSettings("a:1", {}).app), ClientApp)


def test_a_message_whose_parts_are_gone_does_not_end_the_node(caplog):
    link = FakeLink(question(packed=True))
    link.objects.clear()  # the server has given up on it in the meantime
    node_for(link, double).answer(link.message, link.tree)
    (line,) = (line for line in caplog.messages if "could not be answered" in line)
    assert "\n" not in line
    assert not hasattr(link, "reply")
