"""Child processes that end with us: whatever happens to this process, nothing that it started stays behind."""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from fl_app.core.errors import said
from fl_app.store.files import make_folder

GRACE_SECONDS = 5.0
SET_PARENT_DEATH_SIGNAL = 1  # prctl(2): PR_SET_PDEATHSIG
_prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


def free_port() -> int:
    """A port of the loopback interface that the system says is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_free(address: str) -> None:
    """Refuse HOST:PORT where this machine cannot listen, which a SuperLink would say in a page of its own words."""
    host, _, port = address.rpartition(":")
    try:
        family = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family[0], family[1]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: after a restart it is free at once
            probe.bind(family[4])
    except OSError as error:
        raise ValueError(f"this machine cannot listen at {address} ({said(error)}): choose another --address") from error


def search_path() -> str:
    """PATH with what is installed beside this Python first: Flower's commands start one another by name."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def program(name: str) -> str:
    """A command that was installed beside this Python."""
    found = shutil.which(name, path=search_path())
    if found is None:
        raise RuntimeError(f"{name} is not installed: pip install 'thorns[deploy]'")
    return found


def _die_with_parent() -> None:
    if _prctl is not None:
        _prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


class Processes:
    """Started processes by name, each in its own session with its own log file; leaving the block stops all of them.

    A process whose parent is killed is sent SIGTERM by the kernel (Linux); what Flower's own commands start watches its
    parent. Sessions of their own keep Ctrl-C from them: the parent decides when they end.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self.logs = logs
        self.environment = {**os.environ, "PATH": search_path(), **environment}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        make_folder(self.logs)
        return self

    def __exit__(self, *_: object) -> None:
        first, rest = list(self.running)[:1], list(self.running)[1:]
        self.stop(rest)  # while the server that they unregister from still answers
        self.stop(first)

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a process; its output goes to `logs/name.log`."""
        with (self.logs / f"{name}.log").open("ab") as out:
            self.running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        return self.running[name]

    def stop(self, names: list[str]) -> None:
        """End processes and all that they started: politely, and after a few seconds by force."""
        ending = [process for name in names if (process := self.running.pop(name)).poll() is None]
        for process in ending:
            _signal_session(process, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        for process in ending:
            while not _ended(process) and time.monotonic() < deadline:
                time.sleep(0.02)
            _signal_session(process, signal.SIGKILL)  # also what it may have left behind in its session
            process.wait()

    def check(self) -> None:
        """Raise if a process has ended by itself, with the end of what it wrote."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with code {process.returncode}:\n{self.tail(name)}")

    def tail(self, name: str, lines: int = 12) -> str:
        """The last lines that a process wrote."""
        text = (self.logs / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def wait_for_port(self, port: int, seconds: float = 60.0) -> None:
        """Wait until something listens on a port of the loopback interface."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            time.sleep(0.05)
        raise RuntimeError(f"nothing listens on port {port} after {seconds:.0f} s")


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended, without taking note of it: until then its number, and its session's, stay ours."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal_session(process: subprocess.Popen[bytes], number: int) -> None:
    """Signal the session that a process leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
