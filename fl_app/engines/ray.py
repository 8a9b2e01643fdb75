"""The Ray engine: long-lived actors, on this machine or on a cluster, that each hold some of the clients."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict

from fl_app.cluster.bundle import Bundle, unpack
from fl_app.cluster.connect import join, on_cluster
from fl_app.core.machine import cores
from fl_app.engines import Main
from fl_app.engines.dealt import Answered, DealtGrid, HelperLost, Noted, answered
from fl_app.engines.flower import gpu_share
from fl_app.engines.frames import Frames, from_frames
from fl_app.engines.inline import InlineGrid
from fl_app.experiment.toml import Value


class Clients:
    """What lives in an actor: an inline grid, and so all that its clients keep between rounds."""

    def __init__(self, clients: int, run_config: dict[str, Value]) -> None:
        from fl_app.client_app import app

        self._grid = InlineGrid(app, clients, run_config)
        self._noted = Noted()
        log = logging.getLogger("thorns")
        log.handlers, log.propagate = [self._noted], False

    def answer(self, start: int, stop: int, head: bytes, *bodies: Any) -> tuple[list[Answered], Bundle | None]:
        """Answer the messages from `start` to `stop`, in order; with files that clients kept out of the server's sight."""
        messages = from_frames(head, bodies, start, stop)
        answers = [answered(self._grid, message, self._noted) for message in messages]
        return [answer._replace(bodies=[_joined(body) for body in answer.bodies]) for answer in answers], None


class RayGrid(DealtGrid):
    """Weights go into Ray's store once a round, wherever and however many the actors are."""

    def __init__(self, clients: int, run_config: dict[str, Value], workers: int = 0) -> None:
        """`workers` 0: one per core of Ray's."""
        import ray

        from fl_app.client_app import app

        super().__init__(app, clients, run_config)
        self._ray: Any = ray
        self._clients, self._config = clients, run_config
        self._workers = workers
        self._actors: list[Any] = []

    def begin(self, number: int) -> int:
        """Start the actors; a round never needs more than it has clients."""
        room: dict[str, float] = self._ray.cluster_resources()
        there = max(1, int(room.get("CPU", cores())))
        number = min(self._workers or there, number)
        gpus = gpu_share(str(self._config.get("device", "cpu")), number, int(room.get("GPU", 0)))
        takes = {"num_cpus": min(1.0, there / number), "num_gpus": gpus}
        if on_cluster():
            from fl_app.engines.far import start

            self._actors = start(self._ray, number, takes, self._clients, self._config)
            return len(self._actors)
        actor = self._ray.remote(**takes)(Clients)
        self._actors = [actor.remote(self._clients, self._config) for _ in range(number)]
        return number

    def ask(self, frames: Frames, shares: dict[int, range]) -> Iterator[tuple[int, Answered | HelperLost]]:
        """Put every record into the store once, then read the answers as they come."""
        stored = [self._ray.put(_joined(body)) for body in frames.bodies]
        calls = {}
        for helper, share in shares.items():
            calls[self._actors[helper].answer.remote(share.start, share.stop, frames.head, *stored)] = helper
        while calls:
            (done,), _ = self._ray.wait(list(calls), num_returns=1)
            helper = calls.pop(done)
            try:
                answers, files = self._ray.get(done)
            except self._ray.exceptions.RayActorError as error:
                yield helper, HelperLost(f"a Ray actor with clients died ({str(error).partition(chr(10))[0]})")
                continue
            if files is not None:
                unpack(files, Path(str(self._config["run-dir"])))
            for answer in answers:
                yield helper, answer

    def close(self) -> None:
        """End the actors."""
        if on_cluster() and self._actors:
            self._ray.wait([actor.leave.remote() for actor in self._actors], num_returns=len(self._actors), timeout=5)
        for actor in self._actors:
            with contextlib.suppress(self._ray.exceptions.RayError):  # Ray may be gone already
                self._ray.kill(actor)


def _joined(body: list[Any]) -> np.ndarray[Any, Any]:
    """A body as an array, which Ray hands on without a copy."""
    return np.frombuffer(b"".join(body), np.uint8)


def run_ray(clients: int, run_config: dict[str, Value], main: Main, workers: int = 0) -> None:
    """Run `main` as the server of clients in `workers` Ray actors (0: one per core)."""
    started = join()
    import ray

    grid = RayGrid(clients, run_config, workers)
    try:
        main(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=run_config))
    finally:
        grid.close()
        if started:
            ray.shutdown()
