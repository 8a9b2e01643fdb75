"""Where attack jobs run: in this process, or in a Ray actor beside the training."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from fl_app.attacking.jobs import Job, Outcome, run_job
from fl_app.cluster.connect import join, on_cluster

log = logging.getLogger("thorns")
TRIES = 3
WORKER_GPUS = 0.1
"""The share of a GPU that the worker asks for; clients leave it (`engines.ray`)."""


class Worker(ABC):
    """Something that runs jobs, one after the other unless it says otherwise."""

    @abstractmethod
    def run(self, job: Job) -> list[Outcome]:
        """Run a job to its end."""

    def run_all(self, jobs: Iterable[Job]) -> Iterator[tuple[list[Outcome], float]]:
        """Run jobs; (what became of one's targets, its seconds), as they end."""
        for job in jobs:
            began = time.monotonic()
            yield self.run(job), time.monotonic() - began

    def together(self, _targets: int, at_once: int) -> int:
        """Of so many targets, how many should be in a job, `at_once` at most."""
        return at_once

    @abstractmethod
    def close(self) -> None:
        """Give back what the worker holds."""


class InlineWorker(Worker):
    """Runs jobs in this process."""

    def run(self, job: Job) -> list[Outcome]:
        """Run a job."""
        return run_job(job)

    def close(self) -> None:
        """Nothing to give back."""


class RayWorker(Worker):
    """Runs jobs in a Ray actor with a part of the GPU if there is one; if it dies it is started anew and the job retried.

    The actor asks Ray for no CPU, so that Flower's client actors keep all of theirs.
    """

    def __init__(self) -> None:
        import ray

        self._ray: Any = ray
        self._started_ray = join()
        self._actor: Any = None

    def _start(self) -> Any:
        gpus = WORKER_GPUS if torch.cuda.is_available() else 0
        return self._ray.remote(num_cpus=0, num_gpus=gpus, max_restarts=0)(_Actor).remote()

    @property
    def pid(self) -> int:
        """The process of the actor."""
        self._actor = self._actor or self._start()
        return int(self._ray.get(self._actor.pid.remote()))

    def run(self, job: Job) -> list[Outcome]:
        """Run a job in the actor."""
        for attempt in range(1, TRIES + 1):
            try:
                self._actor = self._actor or self._start()
                outcomes: list[Outcome] = self._ray.get(self._actor.run.remote(job))
                return outcomes
            except self._ray.exceptions.RayActorError as error:
                log.warning("the attack worker died (try %d of %d): %s", attempt, TRIES, str(error).partition("\n")[0])
                self._actor = None
        return [Outcome(key, "failed", f"the attack worker died {TRIES} times on this job") for key in job.keys]

    def close(self) -> None:
        """End the actor, and Ray if it was started here."""
        if self._actor is not None:
            self._ray.kill(self._actor)
            self._actor = None
        if self._started_ray:
            self._ray.shutdown()


class _Actor:
    """What lives in the actor's process."""

    def run(self, job: Job) -> list[Outcome]:
        return run_job(job)

    def pid(self) -> int:
        import os

        return os.getpid()


def make_worker(name: str, *, device: str = "cpu", threads: int = 1) -> Worker:
    """The worker of a setting: 'inline' or 'ray', which is on the cluster if the user named one."""
    if name == "ray" and on_cluster():
        from fl_app.attacking.cluster import ClusterWorker

        return ClusterWorker(device=device, threads=threads)
    return RayWorker() if name == "ray" else InlineWorker()
