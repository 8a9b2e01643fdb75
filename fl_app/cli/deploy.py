"""`thorns deploy`: real clients over gRPC."""

import logging
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from fl_app.cli.options import Config, Resume, Settings
from fl_app.core.flower import need_grpc

app = typer.Typer(
    no_args_is_help=True,
    suggest_commands=False,
    help="Real clients over gRPC: a Flower SuperLink and SuperNodes with TLS and keys.",
)
log = logging.getLogger("thorns")
Logs = Annotated[Path | None, typer.Option(metavar="DIR", help="Keep what the processes write.")]


LEAVE_SECONDS = 5.0


def _terminated(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # an exception: what was started is stopped on the way out


def _leave(number: int, frame: FrameType | None) -> None:
    """Take leave of the server, but do not wait for one that does not answer: Flower's client would, for half a minute."""
    force = threading.Timer(LEAVE_SECONDS, os._exit, [128 + number])
    force.daemon = True
    force.start()
    _terminated(number, frame)


def _address(text: str) -> str:
    """HOST:PORT with a port that there is; said here, as Flower would answer with a traceback."""
    host, _, port = text.rpartition(":")
    bare = ":" in host and not (host.startswith("[") and host.endswith("]"))  # whose last part might be the port
    if not host or bare or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise typer.BadParameter(f"{text!r} is not HOST:PORT with a port from 1 to 65535, such as 127.0.0.1:9092 or [::1]:9092")
    return text


@app.command()
def local(
    clients: Annotated[int | None, typer.Option(min=1, help="Number of clients; the same as -c clients=N.")] = None,
    setting: Settings = None,
    config: Config = None,
    resume: Resume = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no node keys.")] = False,
    stock: Annotated[bool, typer.Option("--stock", help="Flower's own SuperNodes and polling, to compare with.")] = False,
    logs: Logs = None,
) -> None:
    """Run an experiment over gRPC on this machine: a SuperLink and a SuperNode for each client, as processes on loopback.

    Certificates and keys are made for this run and thrown away after it. Everything that was started ends with the command.
    """
    need_grpc()
    from fl_app.cli.run import asked_for, run_and_report
    from fl_app.engines.grpc.local import Local, run_local
    from fl_app.experiment.toml import ConfigError, parse_assignment

    named = [value for key, value in map(parse_assignment, setting or []) if key == "clients"]
    if clients and any(value != clients for value in named):
        raise ConfigError(
            f"--clients {clients} and -c clients={named[-1]} say different numbers of clients: leave one of them out"
        )
    changes = [*(setting or []), *([f"clients={clients}"] if clients else [])]
    how = Local(insecure=insecure, stock=stock, logs=logs)
    _prepare()
    if insecure:
        log.warning("--insecure: updates travel in the clear, and anybody who reaches the port can be a client")
    words = f"gRPC on loopback, {'insecure' if insecure else 'TLS and node keys'}"
    start = partial(run_local, how=how, resume=resume is not None)
    run_and_report(asked_for(changes, config, resume), words, start)


@app.command()
def server(
    keys: Annotated[Path, typer.Argument(metavar="DIR", help="ca.crt, server.crt, server.key and the clients' *.pub.")],
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", callback=_address, help="Where clients connect.")
    ] = "0.0.0.0:9092",
    setting: Settings = None,
    config: Config = None,
    resume: Resume = None,
    logs: Logs = None,
) -> None:
    """Run an experiment with clients on other machines: start a SuperLink, let in the keys in DIR, wait for all clients."""
    need_grpc()
    from fl_app.cli.run import asked_for, run_and_report
    from fl_app.engines.grpc.certificates import Certificates
    from fl_app.engines.grpc.local import run_server

    certificates, public = Certificates.inside(keys), sorted(keys.glob("*.pub"))
    experiment = asked_for(setting, config, resume)
    if len(public) < experiment.clients:
        raise ValueError(
            f"{keys} has {len(public)} public keys (*.pub) for {experiment.clients} clients: add the missing ones, or set "
            "-c clients=N"
        )
    _prepare()
    start = partial(
        run_server, address=address, certificates=certificates, public_keys=public, logs=logs, resume=resume is not None
    )
    run_and_report(experiment, f"gRPC at {address}, TLS and node keys", start)


@app.command()
def client(
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", callback=_address, help="The SuperLink's Fleet API.")],
    node_config: Annotated[
        str,
        typer.Option(
            metavar="KEY=VALUE ...", help="This client's own settings, e.g. 'partition-id=0 num-partitions=10', or a TOML file."
        ),
    ],
    root_certificates: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Who signed the server's certificate.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="This client's private key.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no key.")] = False,
    app: Annotated[str, typer.Option(metavar="MODULE:NAME", help="The installed ClientApp to run.")] = "fl_app.client_app:app",
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A private folder for what must survive a restart; default: one for each key below ~/.local/state/thorns.",
        ),
    ] = None,
) -> None:
    """Be one client until Ctrl-C or SIGTERM; runs what is installed here, never code that the server sends."""
    need_grpc()
    from fl_app.client.node_config import read_node_config
    from fl_app.engines.grpc.connection import NodeSettings
    from fl_app.engines.grpc.node import run_node

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    logging.getLogger("flwr").propagate = False  # it has a handler of its own
    if not sys.stderr.isatty():  # a log file gets one line for each message, however long
        log.handlers, log.propagate = [logging.StreamHandler()], False
    run_node(NodeSettings(superlink, read_node_config(node_config), root_certificates, key, insecure, app, state))


@app.command()
def digests(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE FILE ...", help="weights.txt of the clients' state folders, of the same run.")
    ],
) -> None:
    """Compare what several clients were sent: exit 1 if the server sent different weights in a round."""
    from fl_app.client.digests import compare, read_digests, words

    if len(files) < 2:
        raise typer.BadParameter("compare the files of at least two clients")
    found = compare({str(path): read_digests(path) for path in files})
    for line in words(found):
        typer.echo(line)
    if found.different:
        raise typer.Exit(1)


@app.command("keys")
def make_keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    clients: Annotated[int, typer.Option(min=1, help="Number of client keys.")] = 2,
    host: Annotated[list[str] | None, typer.Option(help="A name or address of the server; may be repeated.")] = None,
    days: Annotated[int, typer.Option(min=1, max=36500, help="How long the certificates hold.")] = 30,
) -> None:
    """Make TLS certificates and client keys: ca.crt goes to everybody, client-N and client-N.toml to their client alone."""
    from fl_app.client.node_config import TEMPLATE
    from fl_app.engines.grpc.certificates import LOOPBACK, make_certificates, make_node_key, write_private
    from fl_app.store.files import make_folder

    new = not folder.exists()
    make_folder(folder)
    if new:
        folder.chmod(0o700)
    make_certificates(folder, (*(host or []), *LOOPBACK), days)
    for number in range(clients):
        make_node_key(folder, number)
        write_private(folder / f"client-{number}.toml", TEMPLATE.format(client=number, clients=clients).encode())
    typer.echo(f"{folder}: ca.crt, server.crt, server.key, and for each of {clients} clients its key client-N, client-N.pub")
    typer.echo("for the server, and client-N.toml with what it may decide itself (--node-config client-N.toml)")


@app.command("encryption-key")
def make_encryption_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file; clients name it in their node config.")],
) -> None:
    """Make the key that all clients of a run with visibility=encrypted share; by one of them, and never for the server."""
    from fl_app.engines.grpc.certificates import write_private
    from strategies.ckks import Key

    write_private(file, Key.make().to_bytes())
    typer.echo(f"{file}: give it to every client and to nobody else, the server least of all; in its node config:")
    typer.echo(f'encryption-key-file = "{file}"')


def _prepare() -> None:
    """SIGTERM stops what was started; Flower's own log shows problems alone."""
    signal.signal(signal.SIGTERM, _terminated)
    logging.getLogger("flwr").setLevel(logging.ERROR)
