"""A resident SuperNode: Flower's own gRPC connection, a short poll, and one ClientApp that stays loaded.

`flower-supernode` looks for messages every 3 s, and each message starts a process that imports torch and reads the data.
This node speaks the same protocol through Flower's own client, but answers in its own process. It also runs no code that
a server sends: of the app bundle it reads the run's settings, nothing else. What it runs is what is installed here.
"""

import importlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from flwr.app import Context, Error, Message, RecordDict
from flwr.client.grpc_rere_client.connection import grpc_request_response
from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects
from flwr.supercore.retry import make_simple_grpc_retry_invoker
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from fl_app.config import Value
from fl_app.deploy.certificates import read_node_key
from fl_app.deploy.packing import announce, pack_content, unpack_message
from fl_app.deploy.polling import Backoff
from fl_app.own_config import own_config

log = logging.getLogger("thorns")
TRIES, MOST_TRIES = "THORNS_CLIENT_TRIES", 4
KEPT_RUNS = 8
"""Runs whose state a node remembers."""


@dataclass(frozen=True)
class NodeSettings:
    """What an operator decides about one client: where the server is, who the client is, and what it runs."""

    superlink: str
    node_config: dict[str, Value]
    root_certificates: Path | None = None
    key: Path | None = None
    insecure: bool = False
    app: str = "fl_app.client_app:app"

    def __post_init__(self) -> None:
        if self.insecure and (self.key or self.root_certificates):
            raise ValueError("--insecure sends everything in the clear: leave out the key and the certificates, or --insecure")


class Connection(NamedTuple):
    """Flower's primitives of a connection to a SuperLink, in its order."""

    node_id: int
    receive: Callable[[], tuple[Message, ObjectTree] | None]
    send: Callable[[Message, ObjectTree, float], tuple[set[str], str]]
    get_run: Callable[[int], Run]
    get_fab: Callable[[str, int], Fab]
    pull_object: Callable[[int, str], bytes]
    push_object: Callable[[int, str, str, bytes], None]
    confirm: Callable[[int, str], None]


def load_client_app(reference: str) -> ClientApp:
    """The installed ClientApp that 'module:name' names."""
    module, _, name = reference.partition(":")
    try:
        app = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no ClientApp '{reference}' is installed here: {error}") from error
    if not isinstance(app, ClientApp):
        raise ValueError(f"'{reference}' is a {type(app).__name__}, not a ClientApp")
    return app


@dataclass
class Node:
    """One client: pulls a message, answers it with the app, pushes the reply; one at a time."""

    connection: Connection
    app: ClientApp
    node_config: dict[str, Value]
    contexts: dict[int, Context] = field(default_factory=dict)

    def work(self, backoff: Backoff) -> None:
        """Answer messages until the connection ends."""
        while True:
            backoff.begin()
            while (received := self._receive()) is None:
                time.sleep(backoff.pause())
            backoff.end()
            self.answer(*received)

    def answer(self, message: Message, tree: ObjectTree) -> None:
        """Fetch the rest of a message, answer it and send the reply."""
        try:
            complete, began = self._fetch(message, tree), time.monotonic()
            reply = self._reply(complete)
            self._send(reply, time.monotonic() - began)
        except RunNotRunningException:
            log.info("the run has ended; its message is left unanswered")

    def _receive(self) -> tuple[Message, ObjectTree] | None:
        try:
            return self.connection.receive()
        except RunNotRunningException:  # of a message that waited for this node when its run ended
            return None

    def _fetch(self, message: Message, tree: ObjectTree) -> Message:
        run_id, message_id = message.metadata.run_id, message.metadata.message_id
        ids = list(dict.fromkeys(node.object_id for node in iterate_object_tree(tree)))
        contents = pull_objects(ids, lambda key: self.connection.pull_object(run_id, key))
        self.connection.confirm(run_id, message_id)
        complete = cast(Message, inflate_object_from_contents(tree.object_id, contents))
        complete.metadata.__dict__["_message_id"] = message_id
        return complete

    def _context(self, run_id: int) -> Context:
        if run_id not in self.contexts:
            run = self.connection.get_run(run_id)
            fab = self.connection.get_fab(run.fab_hash, run_id)
            config = get_fused_config_from_fab(fab.content, run)
            self.contexts[run_id] = Context(run_id, self.connection.node_id, dict(self.node_config), RecordDict(), config)
            for old in list(self.contexts)[:-KEPT_RUNS]:
                del self.contexts[old]
        return self.contexts[run_id]

    def _reply(self, message: Message) -> Message:
        TaskIdentity.task_id = TaskIdentity.run_id = message.metadata.run_id
        TaskIdentity.node_id = self.connection.node_id
        try:
            packed = unpack_message(message)
            reply = self.app(message, self._context(message.metadata.run_id))
            if packed:
                reply.content = pack_content(reply.content, {})
            elif reply.has_content():
                announce(reply)
            return reply
        except RunNotRunningException:
            raise
        except Exception as error:  # a message that cannot be answered must not end the node
            log.warning("%s message: %s: %s", message.metadata.message_type, type(error).__name__, error)
            log.debug("", exc_info=error)
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error).__name__}: {error}"), reply_to=message)

    def _send(self, reply: Message, seconds: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            wanted, session = self.connection.send(reply, get_object_tree(reply), seconds)
            run_id = reply.metadata.run_id
            push_objects(
                get_all_nested_objects(reply),
                lambda key, content: self.connection.push_object(run_id, session, key, content),
                object_ids_to_push=wanted,
            )


@contextmanager
def connected(settings: NodeSettings) -> Iterator[Connection]:
    """A connection to the SuperLink; Flower's own client retries while the server cannot be reached."""
    certificates = settings.root_certificates.read_bytes() if settings.root_certificates else None
    keys = read_node_key(settings.key) if settings.key else None
    with grpc_request_response(
        settings.superlink,
        settings.insecure,
        make_simple_grpc_retry_invoker(),
        root_certificates=certificates,
        authentication_keys=keys,
    ) as primitives:
        yield Connection(*primitives)


def run_node(settings: NodeSettings) -> None:
    """Be a client until this process is told to stop."""
    if settings.app == NodeSettings.app:
        own_config(settings.node_config)  # a misspelt defense shall end this client now, not refuse every round
    app = load_client_app(settings.app)  # before connecting: who is asked at once shall not import first
    admitted = False
    try:
        with connected(settings) as connection:
            admitted = True
            how = "without TLS" if settings.insecure else "over TLS"
            log.info("connected to %s %s as node %d", settings.superlink, how, connection.node_id)
            Node(connection, app, settings.node_config).work(Backoff())
    except SystemExit as refused:
        if not admitted and refused.code == 1:  # how Flower says that the SuperLink does not let this node in
            _try_again()
        raise
    raise RuntimeError(f"the SuperLink at {settings.superlink} ended the connection")


def _try_again() -> None:
    """Start over a few times: a server that has just started registers its clients' keys a moment after it listens."""
    tries = int(os.environ.get(TRIES, "1"))
    if tries < MOST_TRIES:
        log.warning("the server did not let this client in; trying again (%d of %d)", tries, MOST_TRIES)
        time.sleep(2)
        os.environ[TRIES] = str(tries + 1)
        os.execv(sys.executable, sys.orig_argv)  # Flower's exit ends this process within seconds, whatever catches it
