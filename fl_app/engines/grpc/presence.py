"""Coming back after a kill: a SuperLink takes a killed node for connected for a minute more, and lets no second one in.

So a node notes under which id it is connected. One that finds such a note unregisters the killed process, and
stays away long enough for the server to see that whatever the killed one was asked will not be answered.
"""

import contextlib
import json
import logging
from pathlib import Path

import grpc  # type: ignore[import-untyped]
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.client.grpc_rere_client.node_auth_client_interceptor import NodeAuthClientInterceptor
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.supercore.grpc import create_channel
from flwr.supercore.interceptors import RuntimeVersionClientInterceptor

from fl_app.core.errors import said
from fl_app.store.files import write_atomic

log = logging.getLogger("thorns")
AWAY_SECONDS = 3.0
"""Several looks of the server for replies."""
CALL_SECONDS = 5.0
Keys = tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]


class Presence:
    """The note of one client, in its state folder."""

    def __init__(self, folder: Path, superlink: str) -> None:
        self.path, self.superlink = folder / "connected.json", superlink

    def note(self, node_id: int) -> None:
        """Note that this process is connected."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomic(self.path, json.dumps({"superlink": self.superlink, "node": node_id}))
        except OSError as error:
            log.warning("the state folder cannot be written (%s): give another one with --state", said(error))

    def forget(self) -> None:
        """Note that this process has taken leave."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
            self.path.parent.rmdir()  # where nothing else was kept in it

    def killed(self) -> int | None:
        """The node id of a process that could not unregister from this SuperLink."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            noted = json.loads(self.path.read_text(encoding="utf-8"))
            if noted["superlink"] == self.superlink:
                return int(noted["node"])
        return None

    def take_leave(self, keys: Keys, certificates: bytes | None) -> bool:
        """Take leave for a killed process; False if there was none, or the SuperLink did not listen."""
        node_id = self.killed()
        if node_id is None:
            return False
        signed = [RuntimeVersionClientInterceptor(component_name="SuperNode"), NodeAuthClientInterceptor(*keys)]
        channel = create_channel(self.superlink, False, root_certificates=certificates, interceptors=signed)
        try:
            FleetStub(channel).DeactivateNode(DeactivateNodeRequest(node_id=node_id), timeout=CALL_SECONDS)
        except grpc.RpcError:  # it is known to be gone, or the server is: the usual way of connecting says what is wrong
            return False
        finally:
            channel.close()
            self.forget()
        log.warning("the last process of this client ended without taking leave; back in %.0f s", AWAY_SECONDS)
        return True
