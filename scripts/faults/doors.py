"""Faults at the door: an unknown key, plaintext against TLS, another authority; none gets in, and each is told why."""

import sys
import time
from pathlib import Path

from faults.stage import Row, wait_until
from fl_app.engines.grpc.certificates import make_certificates, make_node_key
from fl_app.engines.grpc.local import Deployment, Local
from fl_app.engines.grpc.processes import Processes
from fl_app.experiment.config import Experiment


def closed_doors(_: Experiment, folder: Path) -> list[Row]:
    """Four clients that must not get in, at two SuperLinks."""
    for name in ("tls", "plain", "other"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    other = make_certificates(folder / "other")
    stranger = make_node_key(folder / "other", 0)
    with Processes(folder / "logs", {"FLWR_HOME": str(folder / "flwr")}) as processes:
        tls = Deployment(Local(), 1, folder / "tls", processes)
        plain = Deployment(Local(insecure=True), 1, folder / "plain", processes)
        for name, server in (("superlink", tls), ("plain-superlink", plain)):
            processes.start(name, server.link.command())
            processes.wait_for_port(server.link.http_port)
        tls.link.register([key.with_suffix(".pub") for key in tls.keys])
        authority = str(tls.link.certificates.authority) if tls.link.certificates else ""
        with_key = ["--key", str(tls.keys[0])]
        doors = {
            "unknown node key": (tls, ["--root-certificates", authority, "--key", str(stranger)], "key"),
            "plaintext client, TLS server": (tls, ["--insecure"], "TLS"),
            "TLS client, plaintext server": (plain, ["--root-certificates", authority, *with_key], "TLS"),
            "server certificate of another authority": (tls, ["--root-certificates", str(other.authority), *with_key], "TLS"),
        }
        began = time.monotonic()
        for name, (server, words, _word) in doors.items():
            command = [sys.executable, "-m", "fl_app.cli.main", "deploy", "client", "--superlink", server.link.fleet, *words]
            command += ["--node-config", "partition-id=0 num-partitions=1", "--state", str(folder / "states" / name)]
            processes.start(name, command)
        ended: dict[str, float] = {}

        def all_ended() -> bool:
            for name in doors:
                if name not in ended and processes.running[name].poll() is not None:
                    ended[name] = time.monotonic() - began
            return len(ended) == len(doors)

        wait_until(all_ended, "the clients that are not let in end")
        return [_row(processes, name, word, ended[name]) for name, (_server, _words, word) in doors.items()]


def _row(processes: Processes, name: str, word: str, seconds: float) -> Row:
    process = processes.running[name]
    text = " ".join((processes.logs / f"{name}.log").read_text(errors="replace").split())
    line = text[text.rfind("error: ") :] if "error: " in text else text[-200:]
    expected = "not let in; ends with code 2 and one line that says why"
    good = process.returncode == 2 and word in line and "connected to" not in text and "Traceback" not in text
    return Row(name, expected, expected if good else f"code {process.returncode}", line, seconds)
