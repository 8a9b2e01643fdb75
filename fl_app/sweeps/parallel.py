"""Where the units of a sweep are done: in this process, or in Ray actors that stay warm, one per core or GPU."""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from fl_app.cluster.connect import SETTINGS, on_cluster
from fl_app.core.machine import cores, wait_passively
from fl_app.experiment.config import Experiment
from fl_app.sweeps.plan import Unit

TRIES = 2
RESTARTS = 100
"""Of an actor; not without end, for one whose memory does not suffice to begin would be restarted for ever."""


class Ended(NamedTuple):
    """A unit that was done, or why it could not be."""

    unit: Unit
    reason: str = ""
    trace: str = ""


class Workers(Protocol):
    """What does units."""

    @property
    def free(self) -> int:
        """How many units it could begin now."""
        ...

    def begin(self, unit: Unit) -> None:
        """Begin a unit."""
        ...

    def wait(self, seconds: float) -> list[Ended]:
        """Those that ended, after waiting for at most so long for the first."""
        ...

    def close(self) -> None:
        """End what is running."""
        ...


def attempt(unit: Unit, work: Callable[[Unit], None] | None = None) -> tuple[str, str]:
    """Do a unit; (reason, trace) of a failure, which is two empty texts if there was none."""
    from fl_app.sweeps.work import do

    try:
        (work or do)(unit)
    except Exception as error:  # one failed cell must not stop the rest; the report names it
        return f"{type(error).__name__}: {error}", traceback.format_exc()
    return "", ""


class Here:
    """Does units in this process, one after the other."""

    def __init__(self) -> None:
        self.free = 1
        self._begun: list[Unit] = []

    def begin(self, unit: Unit) -> None:
        """Take a unit."""
        self._begun.append(unit)
        self.free -= 1

    def wait(self, seconds: float) -> list[Ended]:
        """Do what was taken."""
        ended = [Ended(unit, *attempt(unit)) for unit in self._begun]
        self._begun, self.free = [], 1
        return ended

    def close(self) -> None:
        """Nothing to end."""


class Actor:
    """What lives in a worker's process: torch, data and models are loaded once and serve every unit."""

    def __init__(self, command: list[str], folder: str) -> None:
        os.chdir(folder)
        sys.argv = command  # environment.json must name what a person typed
        logging.getLogger("thorns").setLevel(logging.ERROR)
        import fl_app.sweeps.work  # noqa: F401

    def attempt(self, unit: Unit) -> tuple[str, str]:
        """Do a unit."""
        return attempt(unit)


class Processes:
    """Does units in Ray actors; one that dies is restarted, and its unit tried once more, by Ray itself."""

    # Not ray.util.ActorPool: it raises what a task raised without saying which unit that was, and keeps the actors that
    # are at work to itself, while `close` must end them at once.

    def __init__(self, number: int, gpus: int = 0) -> None:
        # One thread a process: threads that wait for each other on shared cores slow down everything.
        for name, value in {"OMP_NUM_THREADS": "1", **SETTINGS}.items():
            os.environ.setdefault(name, value)
        wait_passively()
        import ray

        self._ray, self.free = ray, number
        ray.init(
            address="local",  # workers share this disk
            num_cpus=number,
            num_gpus=gpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=100 * 2**20,  # nothing but names passes through it
        )
        actor = ray.remote(num_cpus=1, num_gpus=gpus / number, max_restarts=RESTARTS, max_task_retries=TRIES - 1)(Actor)
        command = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
        self._actors: list[Any] = [actor.remote(command, os.getcwd()) for _ in range(number)]
        self._idle = list(self._actors)
        self._running: dict[Any, tuple[Unit, Any]] = {}

    def begin(self, unit: Unit) -> None:
        """Give a unit to an idle actor."""
        self.free -= 1
        actor = self._idle.pop(0)
        self._running[actor.attempt.remote(unit)] = unit, actor

    def wait(self, seconds: float) -> list[Ended]:
        """Those that ended."""
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        ended = []
        for future in ready:
            unit, actor = self._running.pop(future)
            try:
                reason, trace = self._ray.get(future)
            except self._ray.exceptions.RayActorError as error:
                reason, trace = f"its process died {TRIES} times; out of memory? fewer --workers need less", str(error)
            self._idle.append(actor)
            self.free += 1
            ended.append(Ended(unit, reason, trace))
        return ended

    def close(self) -> None:
        """End all actors at once; what they were doing is done again next time."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.shutdown()


def gpus_for(experiments: Iterable[Experiment]) -> int:
    """How many GPUs there are, if any experiment would use one."""
    import torch

    wanted = any(experiment.device != "cpu" for experiment in experiments)
    return torch.cuda.device_count() if wanted else 0


def usual_number(units: list[Unit]) -> int:
    """One worker a GPU if they are used, else as many as there are cores for the threads that are asked for."""
    experiments = [unit.experiment for unit in units]
    threads = max((experiment.threads for experiment in experiments), default=1)
    return max(1, min(gpus_for(experiments) or cores() // threads, len(units)))


def make_workers(number: int, units: list[Unit]) -> tuple[Workers, int]:
    """(what does units, how many at a time) for a number that was asked for, or 0: one is this process, several have theirs.

    On a cluster that the user named, wherever it has room.
    """
    if on_cluster() and units:
        from fl_app.sweeps.cluster import Nodes

        nodes = Nodes(number, units)
        return nodes, nodes.number
    number = number or usual_number(units)
    return Here() if number == 1 else Processes(number, gpus_for(unit.experiment for unit in units)), number
