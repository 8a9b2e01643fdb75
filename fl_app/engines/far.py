"""Clients in actors on nodes of a cluster that share no disk with the server: data travels there, what they keep comes back."""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_app.cluster.bundle import Bundle, files_in, pack, unpack
from fl_app.cluster.connect import ClusterError
from fl_app.cluster.guest import Guest, Supply, Wanted
from fl_app.cluster.recipes import recipes_for
from fl_app.cluster.team import Store
from fl_app.data.base import Recipe
from fl_app.engines.dealt import Answered
from fl_app.engines.ray import Clients
from fl_app.experiment.toml import Value
from fl_app.store.runs import SETTINGS

log = logging.getLogger("thorns")
START_SECONDS = 300.0
"""For all actors: those that find no room by then are done without."""
KEPT = "clients"
"""The folder of what clients keep, within a run directory."""


class FarClients(Clients):
    """Clients whose run directory is a private folder of their node."""

    def __init__(
        self, clients: int, run_config: dict[str, Value], command: Sequence[str], recipes: Mapping[str, Recipe]
    ) -> None:
        self._guest = Guest(command, recipes)
        self._run = self._guest.folder / "run"
        self._of = clients, {**run_config, "run-dir": str(self._run)}
        self._sent: set[str] = set()

    def prepare(self, files: Bundle, supply: Supply) -> Wanted | None:
        """Load all that clients need; a file that is not here is asked for, and then this is called again."""
        return self._guest.supplied(supply, lambda: self._load(files))

    def _load(self, files: Bundle) -> None:
        from fl_app.experiment.assets import assets_of
        from fl_app.experiment.config import from_run_config

        clients, config = self._of
        unpack(files, self._run)
        self._sent = set(files_in(self._run))
        assets_of(from_run_config(config))
        self._guest.settled = True  # within a round there is nobody to ask
        super().__init__(clients, config)

    def answer(self, start: int, stop: int, head: bytes, *bodies: Any) -> tuple[list[Answered], Bundle | None]:
        """Answer messages, and send the files that clients kept meanwhile."""
        answers, _ = super().answer(start, stop, head, *bodies)
        new = [name for name in files_in(self._run) if name.startswith(f"{KEPT}/") and name not in self._sent]
        if not new:
            return answers, None
        files = pack(self._run, new)
        for name in new:
            (self._run / name).unlink()
        return answers, files

    def leave(self) -> None:
        """Leave nothing behind."""
        self._guest.leave()


def start(ray: Any, number: int, takes: dict[str, float], clients: int, config: dict[str, Value]) -> list[Any]:
    """Actors with clients, as many of `number` as find room, with all that they need."""
    command = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
    make = ray.remote(**takes, scheduling_strategy="SPREAD")(FarClients)
    recipes, run = recipes_for([str(config["dataset"])]), Path(str(config["run-dir"]))
    actors = [make.remote(clients, config, command, recipes) for _ in range(number)]
    names = [name for name in files_in(run) if name == SETTINGS or name.startswith(f"{KEPT}/")]
    store, files, ready, until = Store(ray), ray.put(pack(run, names)), list[Any](), time.monotonic() + START_SECONDS
    calls = {actor.prepare.remote(files, store.supply): actor for actor in actors}
    why = "no node has room"
    while calls:
        done, _ = ray.wait(list(calls), num_returns=1, timeout=max(0.0, until - time.monotonic()))
        if not done:
            break
        actor = calls.pop(done[0])
        try:
            wanted = ray.get(done[0])
        except ray.exceptions.RayError as error:
            why = str(error).strip().splitlines()[-1][:300]
            log.warning("clients could not be started on a node: %s", why)
            continue
        if wanted is None:
            ready.append(actor)
        else:
            store.want(wanted)
            calls[actor.prepare.remote(files, store.supply)] = actor
    for actor in [actor for actor in actors if actor not in ready]:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(actor)
    if not ready:
        raise ClusterError(f"no clients could be started on the cluster: {why}")
    return ready
