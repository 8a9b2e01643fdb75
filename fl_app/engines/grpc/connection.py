"""A node's connection: what its operator decides, Flower's own gRPC client, and what is said when it does not come about."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import grpc  # type: ignore[import-untyped]
from flwr.app import Message
from flwr.client.grpc_rere_client.connection import grpc_request_response
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.fab import Fab
from flwr.supercore.retry import make_simple_grpc_retry_invoker
from flwr.supercore.run import Run

from fl_app.client.policy import STATE_DIR
from fl_app.client.state import default_folder
from fl_app.engines.grpc.certificates import fingerprint, read_node_key
from fl_app.experiment.toml import Value

log = logging.getLogger("thorns")
TRIES, MOST_TRIES = "THORNS_CLIENT_TRIES", 4


@dataclass(frozen=True)
class NodeSettings:
    """What an operator decides about one client: where the server is, who the client is, and what it runs."""

    superlink: str
    node_config: dict[str, Value]
    root_certificates: Path | None = None
    key: Path | None = None
    insecure: bool = False
    app: str = "fl_app.client_app:app"
    state: Path | None = None
    """A private folder for what must survive a restart; None: one of its own for each key or partition."""

    def __post_init__(self) -> None:
        if self.insecure and (self.key or self.root_certificates):
            raise ValueError("--insecure sends everything in the clear: leave out the key and the certificates, or --insecure")

    def authority(self) -> bytes | None:
        """Who signed the server's certificate; None: any that this system trusts."""
        return self.root_certificates.read_bytes() if self.root_certificates else None

    @property
    def state_folder(self) -> Path:
        """Where this client keeps its state."""
        if self.state or STATE_DIR in self.node_config:
            return (self.state or Path(str(self.node_config[STATE_DIR]))).expanduser().resolve()
        if self.key is None:
            return default_folder(f"partition-{self.node_config.get('partition-id')}")
        return default_folder(fingerprint(read_node_key(self.key)[1]))


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


@contextmanager
def connected(settings: NodeSettings) -> Iterator[Connection]:
    """A connection to the SuperLink; Flower's own client retries while the server cannot be reached."""
    keys = read_node_key(settings.key) if settings.key else None
    invoker = make_simple_grpc_retry_invoker()
    usual = invoker.should_giveup

    def gives_up(error: Exception) -> bool:
        # Flower would send this process Ctrl-C, which ends it without a word.
        return _code(error) == grpc.StatusCode.UNAUTHENTICATED or bool(usual and usual(error))

    invoker.should_giveup = gives_up
    with grpc_request_response(
        settings.superlink,
        settings.insecure,
        invoker,
        root_certificates=settings.authority(),
        authentication_keys=keys,
    ) as primitives:
        yield Connection(*primitives)


def _code(error: BaseException | None) -> grpc.StatusCode | None:
    return error.code() if isinstance(error, grpc.RpcError) else None


def words(error: BaseException | None) -> str:
    """What an error says, on one line."""
    return " ".join(str(error.details() if isinstance(error, grpc.RpcError) else error).split())


def reason(settings: NodeSettings, error: BaseException | None) -> str:
    """Why a client was not let in."""
    unknown = _code(error) in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAUTHENTICATED)
    why = "its key is not registered there, or another process is connected with it" if unknown else words(error)
    return f"the server at {settings.superlink} does not let this client in: {why}"


class NoBanner(logging.Filter):
    """Leaves out the lines with which Flower announces its exit: we say ourselves what happened."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to show a line."""
        return not record.getMessage().startswith("Exit Code")


def try_again() -> None:
    """Start over a few times: a server that has just started registers its clients' keys a moment after it listens."""
    tries = int(os.environ.get(TRIES, "1"))
    if tries < MOST_TRIES:
        log.warning("the server did not let this client in; trying again (%d of %d)", tries, MOST_TRIES)
        time.sleep(2)
        os.environ[TRIES] = str(tries + 1)
        os.execv(sys.executable, sys.orig_argv)  # Flower's exit ends this process within seconds, whatever catches it
