"""A resident SuperNode: Flower's own gRPC connection, a short poll, and one ClientApp that stays loaded.

`flower-supernode` looks for messages every 3 s, and each message starts a process that imports torch and reads the data.
This node speaks the same protocol through Flower's own client, but answers in its own process. It also runs no code that
a server sends: of the app bundle it reads the run's settings, nothing else. What it runs is what is installed here.
"""

import importlib
import logging
import time
from dataclasses import dataclass, field
from typing import cast

import grpc  # type: ignore[import-untyped]
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from fl_app.client.guard import guard_of
from fl_app.client.node_config import check_place
from fl_app.client.policy import STATE_DIR, own_config
from fl_app.client.state import check_private
from fl_app.core.parsing import with_article
from fl_app.engines.grpc.certificates import read_node_key
from fl_app.engines.grpc.connection import Connection, NoBanner, NodeSettings, connected, reason, try_again, words
from fl_app.engines.grpc.door import check_door
from fl_app.engines.grpc.packing import announce, pack_content, unpack_message
from fl_app.engines.grpc.polling import Backoff
from fl_app.engines.grpc.presence import AWAY_SECONDS, Presence
from fl_app.experiment.toml import Value

log = logging.getLogger("thorns")
PARTS_SECONDS = 0.02
KEPT_RUNS = 8
"""Runs whose state a node remembers."""


def load_client_app(reference: str) -> ClientApp:
    """The installed ClientApp that 'module:name' names."""
    module, _, name = reference.partition(":")
    try:
        app = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no ClientApp '{reference}' is installed here: {error}") from error
    if not isinstance(app, ClientApp):
        raise ValueError(f"'{reference}' is {with_article(type(app).__name__)}, not a ClientApp")
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
        except grpc.RpcError:
            raise  # of the connection
        except Exception as error:  # of this message: its time is over, or it is none; that must not end the node
            log.warning("a message could not be answered: %s: %s", type(error).__name__, words(error))
            log.debug("", exc_info=error)

    def _receive(self) -> tuple[Message, ObjectTree] | None:
        try:
            return self.connection.receive()
        except RunNotRunningException:  # of a message that waited for this node when its run ended
            return None

    def _fetch(self, message: Message, tree: ObjectTree) -> Message:
        run_id, message_id = message.metadata.run_id, message.metadata.message_id
        ids = list(dict.fromkeys(node.object_id for node in iterate_object_tree(tree)))
        contents = pull_objects(
            ids,
            lambda key: self.connection.pull_object(run_id, key),
            # A node that looks this often sees a message before its parts have come; Flower's own wait for them is a second.
            initial_backoff=PARTS_SECONDS,
            max_tries_per_object=None,
        )
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


def run_node(settings: NodeSettings) -> None:
    """Be a client until this process is told to stop."""
    folder = settings.state_folder
    check_private(folder)
    node_config = {**settings.node_config, STATE_DIR: str(folder)}
    if settings.app == NodeSettings.app:
        check_place(node_config)
        own_config(node_config)  # a misspelt defense must end this client now, not refuse every round
        guard_of(node_config)
    app = load_client_app(settings.app)  # before connecting: a client that is asked at once must not import first
    check_door(settings.superlink, settings.root_certificates, insecure=settings.insecure)
    presence, away_until = Presence(folder, settings.superlink), 0.0
    if settings.key and presence.take_leave(read_node_key(settings.key), settings.authority()):
        away_until = time.monotonic() + AWAY_SECONDS
    time.sleep(max(0.0, away_until - time.monotonic()))
    admitted, ended = False, "it does not say why"
    logging.getLogger("flwr").addFilter(NoBanner())
    try:
        with connected(settings) as connection:
            admitted = True
            how = "without TLS" if settings.insecure else "over TLS"
            log.info("connected to %s %s as node %d", settings.superlink, how, connection.node_id)
            presence.note(connection.node_id)
            try:
                Node(connection, app, node_config).work(Backoff())
            except Exception as error:
                ended = words(error)
                log.debug("", exc_info=error)
    except SystemExit as refused:
        if not admitted and refused.code == 1:  # how Flower says that the SuperLink does not let this node in
            try_again()
            raise RuntimeError(reason(settings, refused.__context__)) from None
        raise
    finally:
        if admitted:
            presence.forget()
    raise RuntimeError(f"the SuperLink at {settings.superlink} ended the connection: {ended}; start this client again")
