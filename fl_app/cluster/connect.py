"""The one way to Ray: one of our own on this machine, or a cluster that the user names, once its nodes are known to fit."""

import hashlib
import importlib
import logging
import os
import socket
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fl_app.core import plugins
from fl_app.core.machine import ray_address, wait_passively

SETTINGS = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
PASSED_ON = ("ONEDNN_MAX_CPU_ISA", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MKL_CBWR", plugins.ALLOW)
"""What processes on nodes must know before they import torch, for the same results; and which code may be imported."""
COMPARED = ("thorns", "torch", "flwr")
KNOCK_SECONDS, ANSWER_SECONDS = 5.0, 90.0


class ClusterError(RuntimeError):
    """A cluster that cannot be used; one line says why."""


def on_cluster() -> bool:
    """Whether work goes to a cluster that the user named."""
    return ray_address() != "local"


def join() -> bool:
    """Connect this process to Ray; False if it was connected before, so that whoever did that also ends it."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    # Workers share the cores: threads that spin while they wait made a small gradient take 44 ms instead of 11.
    wait_passively()
    import ray

    if ray.is_initialized():
        return False
    if not on_cluster():
        ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        return True
    address = ray_address()
    knock(address)
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    try:
        # No other option: a client of Ray's hands those on to a server that may not know them.
        ray.init(address=address, runtime_env={"env_vars": passed}, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # of many kinds, and some of many lines
        raise ClusterError(f"the Ray cluster {address} cannot be joined: {_line(error)}") from error
    try:
        _compare(ray)
    except BaseException:
        ray.shutdown()
        raise
    return True


def knock(address: str) -> None:
    """Refuse an address that is none, or where nobody answers: Ray itself would try for minutes."""
    if address == "auto":
        return
    how = "use ray://HOST:PORT, HOST:PORT or auto"
    try:
        place = urlsplit(address if "://" in address else f"//{address}")
        host, port = place.hostname, place.port
    except ValueError:
        host = port = None
    if not host or not port or place.scheme not in ("", "ray") or place.path not in ("", "/"):
        raise ClusterError(f"{address!r} is no address of a Ray cluster: {how}")
    try:
        socket.create_connection((host, port), KNOCK_SECONDS).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise ClusterError(
            f"no Ray cluster answers at {address} ({why}): start one with `ray start --head`, or {how}"
        ) from None


def _line(error: BaseException) -> str:
    """The last line of an error that says something: before it stand tracebacks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]


def _compare(ray: Any) -> None:
    """Refuse a cluster without a node to work on, or with one whose code is not ours."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {
        node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")
    }
    if not nodes:
        raise ClusterError(f"the Ray cluster {ray_address()} has no node with a CPU: add one with `ray start --address`")
    asked = {
        ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(one, soft=False))(
            about
        ).remote(plugins.allowed()): address
        for one, address in nodes.items()
    }
    for reply, address in asked.items():
        try:
            theirs = ray.get(reply, timeout=ANSWER_SECONDS)
        except ray.exceptions.GetTimeoutError:
            raise ClusterError(f"node {address} did not answer within {ANSWER_SECONDS:g} s") from None
        except ray.exceptions.RayError as error:
            raise ClusterError(f"node {address} cannot work for Thorns; is it installed there? {_line(error)}") from error
        check_same(address, theirs)


def check_same(where: str, theirs: dict[str, str]) -> None:
    """Refuse a node by what it says `about` itself."""
    ours = about([])
    for name, version in ours.items():
        if theirs.get(name) != version:
            told = f"{theirs.get(name)}, and this machine has {version}"
            raise ClusterError(f"node {where} has {name} {told}: install the same on all, or results differ")
    if trouble := theirs.get("trouble"):
        raise ClusterError(f"node {where} cannot import {trouble}: install it there, too")


def about(plugged: list[str]) -> dict[str, str]:
    """What a node has: versions, and under "trouble" the first module of a plug-in that it cannot import."""
    found = {name: _version(name) for name in COMPARED} | {"thorns' code": _code()}
    for name in plugged:
        module = name.partition(":")[0]
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:  # code from outside may raise anything
            return {**found, "trouble": f"{module} ({type(error).__name__}: {_line(error)})"}
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@cache
def _code() -> str:
    """A checksum of our own source: in clones the version says little."""
    digest = hashlib.sha256()
    for package in plugins.OURS:
        (root,) = importlib.import_module(package).__path__
        for path in sorted(Path(root).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]
