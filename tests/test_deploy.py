"""The parts of a deployment: polls, packed messages, keys, processes, the resident node."""

import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from typer.testing import CliRunner

from fl_app.cli_deploy import app as deploy_app
from fl_app.deploy import packing
from fl_app.deploy.certificates import (
    Certificates,
    make_certificates,
    make_node_key,
    read_node_key,
    read_public_key,
)
from fl_app.deploy.grid import AdaptiveGrid
from fl_app.deploy.link import Link
from fl_app.deploy.node import Connection, Node, NodeSettings, load_client_app
from fl_app.deploy.polling import Backoff
from fl_app.deploy.processes import Processes, free_port
from fl_app.wire import to_record, to_tensors

# --- polls


def looks(backoff, clock, wait):
    """How many looks a wait takes, and how late the last one is."""
    begin = clock[0]
    backoff.begin()
    number = 0
    while clock[0] - begin < wait:
        clock[0] += backoff.pause()
        number += 1
    backoff.end()
    return number, clock[0] - begin - wait


@pytest.mark.parametrize("wait", [0.05, 0.5, 5.0])
def test_a_usual_wait_takes_about_ten_looks_and_little_delay(wait):
    clock = [0.0]
    backoff = Backoff(clock=lambda: clock[0])
    for _ in range(12):
        number, late = looks(backoff, clock, wait)
    assert number <= 12
    assert late <= 0.11 * wait + 0.005


def test_an_idle_node_looks_rarely_and_is_quick_again_soon():
    clock = [0.0]
    backoff = Backoff(longest=2.0, clock=lambda: clock[0])
    looks(backoff, clock, 0.5)
    looks(backoff, clock, 3600.0)
    assert backoff.pause() <= 2.0
    late = [looks(backoff, clock, 0.5)[1] for _ in range(3)]
    assert max(late) < 0.2


# --- packed messages

TENSORS = {"a.weight": torch.randn(3, 2, 5), "b": torch.tensor(7), "empty": torch.zeros(0, 4)}


@pytest.fixture
def identity():
    """What Flower's Message takes its sender from."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def equal(record, tensors):
    back = to_tensors(record)
    return list(back) == list(tensors) and all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_packing_keeps_every_bit_and_the_order():
    packed = packing.pack(to_record(TENSORS))
    assert packing.is_packed(packed)
    assert not packing.is_packed(to_record(TENSORS))
    assert equal(packing.unpack(packed), TENSORS)


def test_a_packed_message_has_few_objects(identity):
    many = {f"p{i}": torch.randn(3) for i in range(20)}
    message = Message(RecordDict({"arrays": to_record(many), "config": ConfigRecord({"x": 1})}), 5, "train")
    before = len(get_all_nested_objects(message))
    message.content = packing.pack_content(message.content, {})
    assert before > 40
    assert len(get_all_nested_objects(message)) == 6


def damaged(data):
    return ArrayRecord({packing.PACKED: Array("uint8", (len(data),), packing.PACKED, data)})


def table(text, body=b""):
    return len(text).to_bytes(8, "little") + text + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        table(b"not json"),
        table(b"[" * 5000),
        table(b'{"a": 1}'),
        table(b'[["a", "float32", [1], "numpy.ndarray"]]'),
        table(b'[["a", "float32", [1.5], "numpy.ndarray", 4]]', b"1234"),
        table(b'[["a", "float32", [1], "numpy.ndarray", -1]]', b"1234"),
        table(b'[["a", "float32", [1], "numpy.ndarray", true]]', b"1"),
        table(b'[["a", "float32", [1], "numpy.ndarray", 5]]', b"1234"),
        table(b'[["a", "float32", [1], "numpy.ndarray", 3]]', b"1234"),
    ],
    ids=range(11),
)
def test_damaged_packing_is_a_value_error(data):
    with pytest.raises(ValueError, match="packed record"):
        packing.unpack(damaged(data))


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


def test_the_grid_packs_for_nodes_that_can_read_it_and_no_other(identity):
    nodes = Nodes(packing_nodes=[1])
    grid = AdaptiveGrid(nodes)
    for packed in (set(), {1}, {1}):
        replies = ask(grid)
        assert {m.metadata.dst_node_id for m in nodes.sent if packing.is_packed(m.content["arrays"])} == packed
        assert len(replies) == 2
        assert all(equal(reply.content["arrays"], TENSORS) and len(reply.content) == 1 for reply in replies)


def test_a_node_that_fails_is_sent_plain_messages_again(identity):
    nodes = Nodes(packing_nodes=[1, 2])
    grid = AdaptiveGrid(nodes)
    ask(grid)
    nodes.answer = lambda message: Message(Error(0, "no"), reply_to=message)
    assert all(reply.has_error() for reply in ask(grid))
    nodes.answer = lambda message: None
    ask(grid)
    assert not any(packing.is_packed(message.content["arrays"]) for message in nodes.sent)


def test_a_damaged_packed_reply_does_not_stop_the_others(identity):
    def answer(message):
        if message.metadata.dst_node_id == 1:
            return Message(RecordDict({"arrays": damaged(b"\x01")}), reply_to=message)
        return None

    replies = ask(AdaptiveGrid(Nodes(answer=answer)))
    assert [packing.is_packed(reply.content["arrays"]) for reply in replies] == [True, False]


def test_the_grid_gives_up_at_its_timeout(identity):
    nodes = Nodes()
    nodes.pull_messages = lambda _: []
    began = time.monotonic()
    message = Message(RecordDict({"arrays": to_record(TENSORS)}), 1, "train")
    assert AdaptiveGrid(nodes).send_and_receive([message], timeout=0.2) == []
    assert 0.2 <= time.monotonic() - began < 5


# --- keys


def handshake(server_files, authority, host):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(server_files.server, server_files.server_key)
    client = ssl.create_default_context(cafile=str(authority))
    one, other = socket.socketpair()

    def serve():
        try:
            server.wrap_socket(one, server_side=True).close()
        except (ssl.SSLError, OSError):
            one.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(other, server_hostname=host).close()
    finally:
        other.close()
        thread.join()


def test_certificates_hold_for_their_hosts_and_authority_alone(tmp_path):
    (tmp_path / "other").mkdir()
    files = make_certificates(tmp_path, ("fl.example.org", "127.0.0.1"))
    other = make_certificates(tmp_path / "other")
    for host in ("fl.example.org", "127.0.0.1"):
        handshake(files, files.authority, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, files.authority, "else.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, other.authority, "127.0.0.1")


def test_private_files_are_private_and_never_overwritten(tmp_path):
    files, key = make_certificates(tmp_path), make_node_key(tmp_path, 3)
    for path in (files.server_key, key):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for again in (lambda: make_certificates(tmp_path), lambda: make_node_key(tmp_path, 3)):
        with pytest.raises(ValueError, match="exists"):
            again()
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    assert read_public_key(key.with_suffix(".pub")) == public_key_to_bytes(read_node_key(key)[1])
    with pytest.raises(ValueError, match="not a node key"):
        read_node_key(files.server)
    with pytest.raises(ValueError, match="thorns deploy keys"):
        Certificates.inside(tmp_path / "nothing")


def test_insecure_is_asked_for_by_name(tmp_path):
    files = make_certificates(tmp_path)
    secure = Link("127.0.0.1:1", 2, tmp_path / "secret", files).command()
    assert "--insecure" not in secure
    assert "--enable-supernode-auth" in secure
    assert "--insecure" in Link("127.0.0.1:1", 2, tmp_path / "secret").command()
    with pytest.raises(ValueError, match="in the clear"):
        NodeSettings("127.0.0.1:1", {}, key=tmp_path / "key", insecure=True)


def test_a_server_without_enough_keys_does_not_start(tmp_path):
    runner = CliRunner()
    assert runner.invoke(deploy_app, ["keys", str(tmp_path), "--clients", "2"]).exit_code == 0
    result = runner.invoke(deploy_app, ["server", str(tmp_path), "-c", "clients=3"])
    assert isinstance(result.exception, ValueError)
    assert "2 public keys" in str(result.exception)


# --- processes


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as text:
            return text.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids, seconds=10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(alive(pid) for pid in pids):
        time.sleep(0.02)
    return not any(alive(pid) for pid in pids)


def test_processes_and_what_they_started_end_with_the_block(tmp_path):
    with Processes(tmp_path, {}) as processes:
        stubborn = processes.start("shell", ["sh", "-c", "trap '' TERM; sleep 60 & echo $!; exec sleep 60"])
        while not (text := (tmp_path / "shell.log").read_text().strip()):
            time.sleep(0.01)
        pids = [stubborn.pid, int(text)]
        assert all(alive(pid) for pid in pids)
    assert gone(pids)


def test_a_process_that_ends_by_itself_is_reported_with_its_last_words(tmp_path):
    with Processes(tmp_path, {}) as processes:
        processes.start("node", ["sh", "-c", "echo no such key; exit 3"]).wait()
        with pytest.raises(RuntimeError, match=r"node ended with code 3(.|\n)*no such key"):
            processes.wait_for_port(free_port())


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_children_of_a_killed_parent_do_not_linger(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from fl_app.deploy.processes import Processes\n"
        "with Processes(Path(sys.argv[1]), {}) as p: print(p.start('a', ['sleep', '60']).pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.send_signal(signal.SIGKILL)
    assert gone([child])


# --- the resident node

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
def test_a_node_answers_in_the_format_it_was_asked_in(identity, packed):
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


def test_an_app_that_fails_is_an_error_reply_and_the_node_goes_on(identity):
    def fail(message, context):
        raise ZeroDivisionError("oh")

    link = FakeLink(question(packed=True))
    node_for(link, fail).answer(link.message, link.tree)
    assert "ZeroDivisionError" in link.reply.error.reason


def test_a_run_that_ended_is_no_error(identity):
    link = FakeLink(question(packed=True), fails=True)
    node_for(link, double).answer(link.message, link.tree)


def test_a_node_takes_settings_from_the_bundle_and_no_code(identity, tmp_path):
    from fl_app.deploy.link import bundle

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
