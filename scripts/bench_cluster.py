#!/usr/bin/env python
"""A sweep on a Ray cluster of a head and two nodes with a CPU each: same scores as here, share of ideal, a node killed.

.venv/bin/python scripts/bench_cluster.py [--small] [--work runs/bench-cluster]

The nodes are processes of this machine with an address (127.0.0.x), a HOME and a cache of their own, which are empty at first:
whatever a unit needs travels. The same sweep is done here, on one node, on two nodes, and on two of which one is killed
(SIGKILL to all of its processes) when a third of the units is done. Times are those of whole commands. Linux only; the
machine needs two idle cores, and MNIST in the cache.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from bench_sweep import FILE, finished, results

GOAL, IDEAL = 0.85, 2
FULL = {"seeds": [0, 1, 2, 3], "iterations": 300, "rounds": 200, "defenses": '"prune(ratio=0.9)"', "targets": 16}
SMALL = {"seeds": [0], "iterations": 20, "rounds": 20, "defenses": '"prune(ratio=0.9)"', "targets": 4}
START_SECONDS, SWEEP_SECONDS = 120, 1500
BIN, ROOT = Path(sys.executable).parent, Path(__file__).resolve().parent.parent


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return int(probe.getsockname()[1])


class Machines:
    """A head without a CPU, and nodes; each is a process group of its own, so that ending it ends all that it started."""

    def __init__(self, nodes: int = 2) -> None:
        # Short: Ray keeps sockets in it, whose paths may have 107 letters.
        self.folder, self._number = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp")), nodes
        self.address, self.client = f"127.0.0.2:{free_port()}", f"ray://127.0.0.2:{free_port()}"
        self._all: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            _, port = self.address.split(":")
            own = ["--temp-dir", str(self.folder / "ray"), "--include-dashboard", "false"]
            # Ray's server for ray:// must be told the port of the agent that prepares processes.
            own += ["--ray-client-server-port", self.client.rpartition(":")[2], "--runtime-env-agent-port", str(free_port())]
            self._start("head", 2, "--head", "--port", port, "--num-cpus", "0", *own)
            for number in range(self._number):
                self._start(f"node-{number}", 3 + number, "--address", self.address, "--num-cpus", "1")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def home(self, name: str) -> Path:
        """The HOME of a machine: `head`, `node-0`, ..."""
        return self.folder / name

    def _start(self, name: str, last: int, *words: str) -> None:
        self.home(name).mkdir()
        gone = ("THORNS_DATA", "XDG_CACHE_HOME", "THORNS_RAY_ADDRESS", "RAY_ADDRESS")
        env = {key: value for key, value in os.environ.items() if key not in gone} | {"HOME": str(self.home(name))}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])  # the same code as here
        env["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # else Ray's server for ray:// may fail to start a process for a client
        command = [str(BIN / "ray"), "start", "--block", "--disable-usage-stats", "--object-store-memory", str(200 * 2**20)]
        log = (self.home(name) / "log.txt").open("wb")
        with log:
            self._all.append(
                subprocess.Popen(
                    [*command, "--node-ip-address", f"127.0.0.{last}", *words],
                    env=env,
                    cwd=self.home(name),
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        began = time.monotonic()
        while b"Ray runtime started" not in (self.home(name) / "log.txt").read_bytes():
            if self._all[-1].poll() is not None or time.monotonic() - began > START_SECONDS:
                raise SystemExit(f"{name} does not start: {(self.home(name) / 'log.txt').read_text()[-600:]}")
            time.sleep(0.1)

    def kill(self, number: int) -> None:
        """Kill a node and all of its processes at once."""
        os.killpg(self._all[1 + number].pid, signal.SIGKILL)

    def stop(self) -> None:
        """End everything, whatever state it is in."""
        for process in reversed(self._all):
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._all:
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def sweep(path: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
    """The sweep as a person types it."""
    return subprocess.Popen([str(BIN / "thorns"), "sweep", str(path), "--out", str(out), *more])


def timed(path: Path, out: Path, *more: str) -> float:
    """Seconds of a whole sweep."""
    began, process = time.monotonic(), sweep(path, out, *more)
    try:
        if process.wait(SWEEP_SECONDS):
            raise SystemExit(f"the sweep into {out} failed")
    finally:
        end(process)
    return time.monotonic() - began


def end(process: subprocess.Popen[bytes]) -> None:
    """End a sweep that is still at work, as Ctrl-C would."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()


def inside(out: Path) -> float:
    """Seconds of the work in all units."""
    return sum(float(json.loads((out / "work" / f"{name}.json").read_text())["seconds"]) for name in finished(out))


def at_work(out: Path) -> float:
    """Seconds from the start of the first unit to the end of the last."""
    times = [json.loads(line)["time"] for line in (out / "journal.jsonl").read_text().splitlines()]
    began, ended = (datetime.fromisoformat(time) for time in (min(times), max(times)))
    return (ended - began).total_seconds()


def killed(path: Path, out: Path, machines: Machines, wanted: int) -> float:
    """Kill a node when a third of the units is done; the seconds until the sweep is finished all the same."""
    began, process = time.monotonic(), sweep(path, out, "--cluster", machines.address)
    try:
        while len(finished(out)) < max(1, wanted // 3):
            if process.poll() is not None or time.monotonic() - began > SWEEP_SECONDS:
                raise SystemExit("the sweep ended before a node could be killed")
            time.sleep(0.05)
        machines.kill(1)
        print(f"killed node 1 with {len(finished(out))} of {wanted} units finished", flush=True)
        if process.wait(SWEEP_SECONDS):
            raise SystemExit("the sweep did not survive the death of a node")
    finally:
        end(process)
    return time.monotonic() - began


def main() -> int:
    """Measure and say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="short units: shows that it works; its times mean nothing")
    parser.add_argument("--work", type=Path, default=Path("runs/bench-cluster"), help="is emptied first")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    path, outs = options.work / "bench.toml", {name: options.work / name for name in ("here", "one", "two", "killed")}
    path.write_text(f"lpips = false\ninformed = false\n{FILE.format(**(SMALL if options.small else FULL))}")
    load = os.getloadavg()[0]
    print(f"load of the machine before: {load:.1f}", flush=True)
    seconds = {"here": timed(path, outs["here"], "--workers", "1")}
    with Machines() as machines:
        for name, number in (("one", "1"), ("two", "2")):
            seconds[name] = timed(path, outs[name], "--cluster", machines.address, "--workers", number)
        travelled = [len(list(machines.home(f"node-{i}").rglob("by-hash/*"))) for i in range(2)]
        units = finished(outs["here"])
        seconds["killed"] = killed(path, outs["killed"], machines, len(units))
    share = seconds["one"] / seconds["two"] / IDEAL
    between = at_work(outs["one"]) / at_work(outs["two"]) / IDEAL
    slower = inside(outs["two"]) / inside(outs["one"])
    print(f"{len(units)} units; " + ", ".join(f"{name}: {value:.1f} s" for name, value in seconds.items()))
    print(f"files that travelled into the empty caches of the nodes: {travelled}")
    print(f"share of ideal of two nodes against one: {share:.2f} (goal: {GOAL})")
    print(f"the same from the start of the first unit to the end of the last: {between:.2f}")
    print(f"with two at work each unit took {slower:.2f} x as long: of what the machine allows, {between * slower:.2f}")
    good = True
    for name in ("one", "two", "killed"):
        same, lost = results(outs[name]) == results(outs["here"]), len(units - finished(outs[name]))
        print(f"{name}: metrics and scores {'are those of' if same else 'DIFFER FROM'} the sweep here; {lost} units lost")
        good &= same and not lost
    return 0 if good and (options.small or share >= GOAL) else 1


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)  # the nodes are stopped in any case
    raise SystemExit(main())
