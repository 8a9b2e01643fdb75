"""Guests on the nodes of a cluster, and their work: dealt out, supplied, brought home, and done again where a node died."""

import contextlib
import logging
import math
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fl_app.cluster.bundle import Bundle, digest_of, is_name, unpack
from fl_app.cluster.connect import ClusterError, join
from fl_app.cluster.guest import Came, Guest, Supply, Wanted, Work
from fl_app.core.places import cache_dir
from fl_app.data.base import Recipe

log = logging.getLogger("thorns")
TRIES = 3
"""Of a piece of work whose process or node dies."""
STARTS = 5
"""Of guests that die before they have begun, one after the other."""
LOOK_SECONDS, PATIENCE_SECONDS = 2.0, 600.0


class Task(NamedTuple):
    """A piece of work: what it is called, what is done, and the files that go along, as Ray's reference."""

    name: str
    work: Work
    asked: Any
    files: Any
    tries: int = 1


class Done(NamedTuple):
    """A piece of work that ended: with its answer and files, or with trouble."""

    name: str
    answer: Any = None
    files: Bundle | None = None
    trouble: str = ""
    trace: str = ""


class Store:
    """The cache of this machine, as far as guests asked for it."""

    def __init__(self, ray: Any) -> None:
        self._ray, self.supply = ray, Supply({}, {})

    def want(self, wanted: Wanted) -> None:
        """Tell the checksum of a file, and to those who know it and still ask give the file, through Ray's store."""
        name = wanted.name
        path = cache_dir() / name
        if name not in self.supply.digests:
            self.supply.digests[name] = digest_of(path) if is_name(name) and path.is_file() else ""
        known = self.supply.digests[name]
        if known and wanted.digest == known and known not in self.supply.gifts:
            self.supply.gifts[known] = self._ray.put(np.fromfile(path, np.uint8))


def part_of_gpu(device: str, asked: int, gpus: int) -> float:
    """What a guest takes of a GPU: all of it, or so much that as many as were asked for find room."""
    if device == "cpu" or (device == "auto" and not gpus):
        return 0.0
    return 1 / -(-asked // gpus) if gpus and asked else 1.0


class Team:
    """As many guests as are asked for (0: as there is room for) and can be of use, each with its CPUs and part of a GPU."""

    def __init__(self, recipes: Mapping[str, Recipe], *, most: int, asked: int = 0, cpus: int = 1, device: str = "cpu") -> None:
        self._joined = join()
        import ray

        self._ray: Any = ray
        self._limit, self._cpus = min(asked or most, most), cpus
        self._gpus = gpus = part_of_gpu(device, asked, sum(int(one.get("GPU", 0)) for one in self._rooms()))
        self._store = Store(ray)
        make = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(Guest)
        command = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
        self._make: Any = lambda: make.remote(command, dict(recipes))
        self._starting: dict[Any, Any] = {}
        self._running: dict[Any, tuple[Any, Task]] = {}
        self._idle: list[Any] = []
        self._again: list[Task] = []
        self._failed_starts, self._looked, self._since = 0, -math.inf, time.monotonic()
        try:
            self.number = min(self._limit, self._room())
            if not self.number:
                raise ClusterError(f"no node of the cluster has the {cpus} CPUs and {gpus:g} GPUs that a worker takes")
            self._grow()
        except BaseException:
            self.close()
            raise

    @property
    def free(self) -> int:
        """Guests that wait for work."""
        return len(self._idle)

    def _rooms(self) -> list[dict[str, float]]:
        """What each node that is alive has."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _room(self) -> int:
        """How many guests the nodes that are alive have room for."""
        found = 0
        for room in self._rooms():
            fits = int(room.get("CPU", 0) // self._cpus)
            found += min(fits, int(room.get("GPU", 0) / self._gpus + 1e-6)) if self._gpus else fits
        return found

    def _grow(self) -> None:
        """Have a guest wherever there is room: nodes come and go."""
        self._looked = time.monotonic()
        there = len(self._starting) + len(self._running) + len(self._idle)
        for _ in range(there, min(self._limit, self._room())):
            guest = self._make()
            self._starting[guest.ready.remote()] = guest

    def begin(self, name: str, work: Work, asked: Any, files: Bundle) -> None:
        """Give a piece of work to a free guest."""
        self._send(self._idle.pop(0), Task(name, work, asked, self._ray.put(files)))

    def _send(self, guest: Any, task: Task) -> None:
        call = guest.do.remote(f"{task.name} {task.tries}", task.work, task.asked, task.files, self._store.supply)
        self._running[call] = guest, task

    def wait(self, seconds: float) -> list[Done]:
        """What ended, after waiting for at most so long for the first."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._grow()
        calls = [*self._starting, *self._running]
        if not calls:
            self._patience()
            time.sleep(min(seconds, LOOK_SECONDS))
            return []
        ready, _ = self._ray.wait(calls, num_returns=1, timeout=seconds)
        if not self._running and not self._idle:
            self._patience()
        ended = [done for call in ready if (done := self._ended(call)) is not None]
        while self._again and self._idle:
            self._send(self._idle.pop(0), self._again.pop(0))
        return ended

    def _patience(self) -> None:
        if time.monotonic() - self._since > PATIENCE_SECONDS:
            raise ClusterError(
                f"no node of the cluster had room for {PATIENCE_SECONDS / 60:g} minutes; what is finished is kept"
            )

    def _ended(self, call: Any) -> Done | None:
        errors, self._since = self._ray.exceptions, time.monotonic()
        guest, task = (self._starting.pop(call), None) if call in self._starting else self._running.pop(call)
        try:
            came = self._ray.get(call)
        except errors.RayTaskError as error:  # what our own code raised there
            self._idle.append(guest)
            assert task is not None  # `ready` raises nothing
            cause = error.cause if isinstance(error.cause, Exception) else error
            return Done(task.name, trouble=f"{type(cause).__name__}: {cause}", trace=str(error))
        except errors.RayError as error:  # the process, its node, or what it had answered is gone
            with contextlib.suppress(errors.RayError, ValueError):
                self._ray.kill(guest)
            self._looked = -math.inf
            return self._lost(task, error)
        self._failed_starts = 0
        if task is None:
            self._idle.append(guest)
        elif isinstance(came, Wanted):
            self._store.want(came)
            self._send(guest, task)
        else:
            self._idle.append(guest)
            self._take_made(came)
            return Done(task.name, came.answer, came.files)
        return None

    def _lost(self, task: Task | None, error: Exception) -> Done | None:
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]
        if task is None:
            self._failed_starts += 1
            if self._failed_starts >= STARTS:
                raise ClusterError(f"workers on the cluster died {STARTS} times before they began: {why}")
            return None
        if task.tries >= TRIES:
            return Done(task.name, trouble=f"its process or node died {TRIES} times; out of memory?", trace=str(error))
        log.warning(
            "%s: its process or node died, so it is done again elsewhere (try %d of %d)", task.name, task.tries + 1, TRIES
        )
        self._again.append(task._replace(tries=task.tries + 1))
        return None

    def _take_made(self, came: Came) -> None:
        """What a guest learned goes into this cache, for the next one."""
        unpack(came.made, cache_dir(), keep=True)
        for entry in came.made.entries:
            self._store.supply.digests.pop(entry.name, None)

    def close(self) -> None:
        """End all guests; those that are at work at once, and what they were doing is done again next time."""
        errors = self._ray.exceptions
        if leaving := [guest.leave.remote() for guest in self._idle]:
            self._ray.wait(leaving, num_returns=len(leaving), timeout=5)
        for guest in [*self._idle, *self._starting.values(), *(guest for guest, _ in self._running.values())]:
            with contextlib.suppress(errors.RayError, ValueError):
                self._ray.kill(guest)
        if self._joined:
            self._ray.shutdown()
