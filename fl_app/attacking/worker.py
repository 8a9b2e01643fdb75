"""Where attack jobs run: in this process, or in a Ray actor beside the training."""

import logging
from typing import Any, Protocol

import torch

from fl_app.attacking.jobs import Job, Outcome, run_job
from fl_app.core.machine import ray_address

log = logging.getLogger("thorns")
TRIES = 3
WORKER_GPUS = 0.1
"""The share of a GPU that the worker asks for; clients leave it (`engines.ray`)."""


class Worker(Protocol):
    """Something that runs jobs."""

    def run(self, job: Job) -> list[Outcome]:
        """Run a job to its end."""
        ...

    def close(self) -> None:
        """Give back what the worker holds."""
        ...


class InlineWorker:
    """Runs jobs in this process."""

    def run(self, job: Job) -> list[Outcome]:
        """Run a job."""
        return run_job(job)

    def close(self) -> None:
        """Nothing to give back."""


class RayWorker:
    """Runs jobs in a Ray actor with a part of the GPU if there is one; if it dies it is started anew and the job retried.

    The actor asks Ray for no CPU, so that Flower's client actors keep all of theirs.
    """

    def __init__(self) -> None:
        import ray

        self._ray = ray
        self._started_ray = not ray.is_initialized()
        if self._started_ray:
            ray.init(address=ray_address(), include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
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


def make_worker(name: str) -> Worker:
    """The worker of a setting: 'inline' or 'ray'."""
    return RayWorker() if name == "ray" else InlineWorker()
