"""A SuperLink: its command line, and what is asked of it over its local HTTP API."""

import contextlib
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
from flwr.app import Context
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SubStatus
from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.superexec.run_superexec import _SUPEREXEC_AUTH_METHODS
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fl_app.engines.bundle import CLIENT_APP, app_toml
from fl_app.engines.grpc.certificates import Certificates, read_public_key, write_private
from fl_app.engines.grpc.processes import program
from fl_app.experiment.toml import Value

OUTAGE_SECONDS = 60.0
"""How long a run waits for a SuperLink that does not answer; Flower waits for ever."""


@dataclass(frozen=True)
class Link:
    """One SuperLink: clients reach `fleet` over gRPC; `http_port` (runs, registration) listens on loopback alone."""

    fleet: str
    http_port: int
    secret_file: Path
    certificates: Certificates | None = None
    """None: no TLS and no node keys."""
    database: Path | None = None
    """Where it keeps its state, to survive a restart; None: in memory."""

    def command(self) -> list[str]:
        """How it is started: it runs no ServerApp itself, and nobody without the secret may take the run's task."""
        command = [program("flower-superlink"), "--isolation", "process", "--host", "127.0.0.1", "--port", str(self.http_port)]
        command += ["--fleet-api-type", "grpc-rere", "--fleet-api-address", self.fleet]
        command += ["--superexec-auth-secret-file", str(self.secret_file), "--disable-runtime-dependency-installation"]
        if self.certificates is None:
            command += ["--insecure"]
        else:
            files = self.certificates
            command += ["--ssl-ca-certfile", str(files.authority), "--ssl-certfile", str(files.server)]
            command += ["--ssl-keyfile", str(files.server_key), "--enable-supernode-auth"]
        return command + (["--database", str(self.database)] if self.database else [])

    @property
    def http_address(self) -> str:
        """Where runs are started."""
        return f"127.0.0.1:{self.http_port}"

    def register(self, public_keys: list[Path]) -> None:
        """Allow the clients with these keys."""
        with self._control() as control:
            for path in public_keys:
                control.RegisterNode(RegisterNodeRequest(public_key=read_public_key(path), name=path.stem))

    def start_run(self, run_config: dict[str, Value], client_app: str = CLIENT_APP) -> int:
        """Start a run; its app bundle holds settings and no code: the code is what each side has installed."""
        fab = Fab("", bundle(run_config, client_app), {})
        with self._control() as control:
            return int(control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)

    @contextmanager
    def serverapp(self, seconds: float = 30.0) -> Iterator[tuple[Grid, Context]]:
        """Be the ServerApp of the run that was started: take its task, and report how it ended."""
        token = self._acquire(seconds)
        grid = HttpGrid(self.http_address, self.certificates is None, self._authority(), token=token)
        grid._retry_invoker.max_time = OUTAGE_SECONDS
        grid._retry_invoker.should_giveup = _gives_up
        client = grid._runtime_client
        heartbeat = HeartbeatSender(partial(_beat, client))
        heartbeat.start()
        status, details = SubStatus.FAILED, "the ServerApp ended before its time"
        try:
            given = client.PullTaskInput(PullTaskInputRequest())
            TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
            TaskIdentity.node_id = given.context.node_id
            grid.set_run(run_from_proto(given.run))
            yield grid, context_from_proto(given.context)
            status, details = SubStatus.COMPLETED, ""
        except httpx.HTTPError as error:
            details = str(error)
            if isinstance(error, httpx.HTTPStatusError):
                why = f"does not know this run (status {error.response.status_code}): it was restarted without its database, or"
                why += " the run was stopped there"
            else:
                why = f"did not answer for {OUTAGE_SECONDS:.0f} s"
            raise RuntimeError(f"the SuperLink at {self.http_address} {why}; --resume goes on with what is kept") from None
        except Exception as error:
            details = f"{type(error).__name__}: {error}"
            raise
        finally:
            grid._retry_invoker.max_tries = 1
            with contextlib.suppress(httpx.HTTPError):  # the result does not depend on it
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
            heartbeat.stop()
            grid.close()

    def _acquire(self, seconds: float) -> str:
        interceptors: list[ProtobufClientInterceptor] = [
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(
                master_secret=self.secret_file.read_bytes(), protected_methods=_SUPEREXEC_AUTH_METHODS
            ),
        ]
        client = RuntimeHttpClient.from_server_address(
            self.http_address, self.certificates is None, self._authority(), interceptors
        )
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                answer = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if answer.token:
                    return str(answer.token)
                time.sleep(0.05)
        finally:
            client.close()
        raise RuntimeError(f"the SuperLink at {self.http_address} has no run that waits for its server")

    @contextmanager
    def _control(self) -> Iterator[ControlHttpClient]:
        client = ControlHttpClient.from_server_address(
            self.http_address,
            self.certificates is None,
            self._authority(),
            [RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )
        try:
            yield client
        finally:
            client.close()

    def _authority(self) -> bytes | None:
        return self.certificates.authority.read_bytes() if self.certificates else None


def _gives_up(error: Exception) -> bool:
    """Whether to stop trying: a server that answers and says no will say no again. Flower would press Ctrl-C for us."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in (503, 504)


def _beat(client: RuntimeHttpClient) -> bool:
    """Say that the server of a run is alive; a SuperLink that does not listen is noticed by the run itself."""
    try:
        return bool(client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
    except httpx.HTTPError:
        return False


def bundle(run_config: dict[str, Value], client_app: str = CLIENT_APP) -> bytes:
    """The app bundle of a run."""
    return build_fab_from_files({"pyproject.toml": app_toml(run_config, client_app).encode()})[0]


def make_secret(path: Path) -> Path:
    """A new secret that allows to be a SuperLink's ServerApp."""
    write_private(path, secrets.token_bytes(32))
    return path
