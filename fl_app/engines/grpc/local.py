"""A SuperLink and a run on it: with a SuperNode process for each client on this machine, or for clients elsewhere."""

import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid

from fl_app.engines.beside import MakeBeside
from fl_app.engines.bundle import CLIENT_APP
from fl_app.engines.grpc.certificates import Certificates, check_public_keys, make_certificates, make_node_key
from fl_app.engines.grpc.grid import AdaptiveGrid
from fl_app.engines.grpc.link import Link, make_secret
from fl_app.engines.grpc.processes import Processes, check_free, free_port, program
from fl_app.engines.serving import serve
from fl_app.engines.watcher import Watcher
from fl_app.experiment.config import Experiment
from fl_app.experiment.limits import check_limits, check_message
from fl_app.store.files import make_folder
from fl_app.store.runs import RunDir

log = logging.getLogger("thorns")
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    # Processes share the cores: threads that spin while they wait would take them from those that work.
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
}
Wrap = Callable[[Grid], Grid]


@dataclass(frozen=True)
class Local:
    """How to deploy on this machine."""

    insecure: bool = False
    """No TLS, no node keys."""
    stock: bool = False
    """Flower's own SuperNodes and Flower's own polling, to compare with."""
    client_app: str = CLIENT_APP
    logs: Path | None = None
    """Where the processes write; None: a folder that goes with the deployment."""
    database: Path | None = None
    """Where the SuperLink keeps its state, to survive a restart; None: in memory, which is faster."""
    own: Mapping[int, str] = field(default_factory=dict)
    """What some clients decide themselves: client -> settings of its node config."""


class Deployment:
    """A SuperLink and SuperNodes on loopback, with certificates and keys of their own."""

    def __init__(self, how: Local, clients: int, folder: Path, processes: Processes, states: Path | None = None) -> None:
        self.how, self.clients, self.processes = how, clients, processes
        self.states = states or folder / "states"
        certificates = None if how.insecure else make_certificates(folder)
        self.keys = [] if how.insecure else [make_node_key(folder, client) for client in range(clients)]
        secret = make_secret(folder / "secret")
        self.link = Link(f"127.0.0.1:{free_port()}", free_port(), secret, certificates, how.database)

    def start_link(self) -> None:
        """Start the SuperLink and wait until it listens."""
        self.processes.start("superlink", self.link.command())
        self.processes.wait_for_port(self.link.http_port)

    def start_node(self, client: int) -> None:
        """Start the SuperNode of a client."""
        config = f"partition-id={client} num-partitions={self.clients} {self.how.own.get(client, '')}".strip()
        if self.how.stock:
            command = [program("flower-supernode"), "--grpc-rere", "--port", str(free_port()), "--host", "127.0.0.1"]
            key = ["--auth-supernode-private-key"]
        else:
            debug = ["--debug"] if os.environ.get("THORNS_DEBUG") else []
            command = [sys.executable, "-m", "fl_app.cli.main", *debug, "deploy", "client", "--app", self.how.client_app]
            command += ["--state", str(self.states / f"node-{client}")]
            key = ["--key"]
        command += ["--superlink", self.link.fleet, "--node-config", config]
        if self.link.certificates is None:
            command += ["--insecure"]
        else:
            command += ["--root-certificates", str(self.link.certificates.authority), *key, str(self.keys[client])]
        self.processes.start(f"client-{client}", command)


@contextmanager
def _processes(logs: Path | None) -> Iterator[tuple[Path, Processes]]:
    """A private folder (mode 0700) and an empty set of processes; both are gone after the block, whatever happens in it."""
    with tempfile.TemporaryDirectory(prefix="thorns-deploy-", ignore_cleanup_errors=True) as text:
        folder = Path(text)
        with Processes(logs or folder / "logs", {**QUIET, "FLWR_HOME": str(folder / "flwr")}) as processes:
            yield folder, processes


@contextmanager
def deployment(how: Local, clients: int, states: Path | None = None) -> Iterator[Deployment]:
    """Start a SuperLink and a SuperNode for each client; stop exactly these when the block ends."""
    with _processes(how.logs) as (folder, processes):
        running = Deployment(how, clients, folder, processes, states)
        running.start_link()
        running.link.register([key.with_suffix(".pub") for key in running.keys])
        for client in range(clients):
            running.start_node(client)
        yield running


def wait_for_nodes(grid: Grid, clients: int, processes: Processes, seconds: float | None) -> None:
    """Wait until every client is connected; a process that ends is an error at once."""
    deadline = None if seconds is None else time.monotonic() + seconds
    before = -1
    while (connected := len(list(grid.get_node_ids()))) < clients:
        processes.check()
        if deadline is not None and time.monotonic() > deadline:
            raise RuntimeError(f"only {connected} of {clients} clients are connected after {seconds:.0f} s")
        if connected != before:
            log.info("%d of %d clients are connected", connected, clients)
            before = connected
        time.sleep(0.2)


def serve_on(
    link: Link,
    processes: Processes,
    experiment: Experiment,
    watcher: Watcher,
    patience: float | None,
    resume: bool,
    wrap: Wrap,
    make_beside: MakeBeside | None,
) -> RunDir:
    """Run an experiment, or go on with one, on a SuperLink where a run was started; waits until all clients are connected."""
    with link.serverapp() as (grid, given):
        wait_for_nodes(grid, experiment.clients, processes, patience)
        context = Context(given.run_id, given.node_id, {}, given.state, experiment.run_config())
        return serve(wrap(grid), context, watcher, resume=resume, make_beside=make_beside)


def _ready(experiment: Experiment, *, resume: bool) -> None:
    """Refuse what the server would refuse, before processes are started and clients waited for."""
    check_limits(experiment)
    check_message(experiment)
    if experiment.run_dir:
        if not resume:
            RunDir.refuse_present(Path(experiment.run_dir))
        make_folder(Path(experiment.run_dir))


def run_local(
    experiment: Experiment,
    watcher: Watcher,
    how: Local,
    *,
    resume: bool = False,
    wrap: Wrap | None = None,
    make_beside: MakeBeside | None = None,
) -> RunDir:
    """Deploy on this machine, run an experiment, stop what was started; `wrap` lets a benchmark time the grid."""
    _ready(experiment, resume=resume)
    wrap = wrap or ((lambda grid: grid) if how.stock else AdaptiveGrid)
    patience = 120.0 + 10.0 * experiment.clients  # each node imports torch, and they share the cores
    # In the run directory, to be there when the run is resumed, by whichever engine.
    states = Path(experiment.run_dir) / "clients" if experiment.run_dir else None
    with deployment(how, experiment.clients, states) as running:
        running.link.start_run(experiment.run_config(), how.client_app)
        return serve_on(
            running.link,
            running.processes,
            experiment,
            watcher,
            patience=patience,
            resume=resume,
            wrap=wrap,
            make_beside=make_beside,
        )


def run_server(
    experiment: Experiment,
    watcher: Watcher,
    address: str,
    certificates: Certificates,
    public_keys: list[Path],
    *,
    logs: Path | None = None,
    resume: bool = False,
    make_beside: MakeBeside | None = None,
) -> RunDir:
    """Start a SuperLink for clients elsewhere, let in those with these keys, wait for all of them, run an experiment."""
    _ready(experiment, resume=resume)
    certificates.check()
    check_public_keys(public_keys)
    check_free(address)
    with _processes(logs) as (folder, processes):
        link = Link(address, free_port(), make_secret(folder / "secret"), certificates)
        processes.start("superlink", link.command())
        processes.wait_for_port(link.http_port)
        link.register(public_keys)
        link.start_run(experiment.run_config())
        return serve_on(
            link, processes, experiment, watcher, patience=None, resume=resume, wrap=AdaptiveGrid, make_beside=make_beside
        )
