"""The Ray engine: long-lived actors, on this machine or on a cluster, that each hold some of the clients."""

import contextlib
import logging
import os
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict

from fl_app.core.machine import cores, ray_address, wait_passively
from fl_app.engines import Main
from fl_app.engines.dealt import Answered, DealtGrid, HelperLost, Noted, answered
from fl_app.engines.flower import gpu_share
from fl_app.engines.frames import from_frames, to_frames
from fl_app.engines.inline import InlineGrid
from fl_app.experiment.config import Value

SETTINGS = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class Clients:
    """What lives in an actor: an inline grid, and so all that its clients keep between rounds."""

    def __init__(self, clients: int, run_config: dict[str, Value]) -> None:
        from fl_app.client_app import app

        self._grid = InlineGrid(app, clients, run_config)
        self._noted = Noted()
        log = logging.getLogger("thorns")
        log.handlers, log.propagate = [self._noted], False

    def answer(self, heads: list[bytes], *bodies: Any) -> list[Answered]:
        """Answer messages, in order."""
        return [answered(self._grid, message, self._noted) for message in from_frames(heads, bodies)]


class RayGrid(DealtGrid):
    """Weights go into Ray's store once a round, wherever and however many the actors are."""

    def __init__(self, clients: int, run_config: dict[str, Value], workers: int = 0) -> None:
        """`workers` 0: one per core of Ray's."""
        import ray

        from fl_app.client_app import app

        super().__init__(app, clients, run_config)
        self._ray, self._clients, self._config = ray, clients, run_config
        self._workers = workers
        self._actors: list[Any] = []

    def begin(self, number: int) -> int:
        """Start the actors; a round never needs more than it has clients."""
        room: dict[str, float] = self._ray.cluster_resources()  # type: ignore[no-untyped-call]
        there = max(1, int(room.get("CPU", cores())))
        number = min(self._workers or there, number)
        gpus = gpu_share(str(self._config.get("device", "cpu")), number, int(room.get("GPU", 0)))
        actor = self._ray.remote(num_cpus=min(1.0, there / number), num_gpus=gpus)(Clients)
        self._actors = [actor.remote(self._clients, self._config) for _ in range(number)]
        return number

    def ask(self, dealt: dict[int, list[Message]]) -> dict[int, list[Answered] | HelperLost]:
        """Put what several actors need into the store, then wait for all answers."""
        helpers = list(dealt)
        asked = [message for helper in helpers for message in dealt[helper]]
        heads, bodies = to_frames(asked)
        stored = [self._ray.put(np.frombuffer(body, np.uint8)) for body in bodies]
        calls = {}
        for helper in helpers:
            own, heads = heads[: len(dealt[helper])], heads[len(dealt[helper]) :]
            calls[helper] = self._actors[helper].answer.remote(own, *stored)
        return {helper: self._answers(call) for helper, call in calls.items()}

    def _answers(self, call: Any) -> list[Answered] | HelperLost:
        try:
            answers: list[Answered] = self._ray.get(call)
            return answers
        except self._ray.exceptions.RayActorError as error:
            return HelperLost(f"a Ray actor with clients died ({str(error).partition(chr(10))[0]})")

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)


def run_ray(clients: int, run_config: dict[str, Value], main: Main, workers: int = 0) -> None:
    """Run `main` as the server of clients in `workers` Ray actors (0: one per core)."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    # Actors share the cores: threads that spin while they wait made a small gradient take 44 ms instead of 11.
    wait_passively()
    import ray

    started = not ray.is_initialized()
    if started:
        ray.init(address=ray_address(), include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    grid = RayGrid(clients, run_config, workers)
    try:
        main(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=run_config))
    finally:
        grid.close()
        if started:
            ray.shutdown()
