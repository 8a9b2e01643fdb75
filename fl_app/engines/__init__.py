"""Engines: where the clients of a run live. The same experiment gives the same weights on each."""

import logging
from collections.abc import Callable
from typing import NamedTuple

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid

from fl_app.core.spec import SpecError, suggest
from fl_app.engines.beside import MakeBeside
from fl_app.engines.serving import serve
from fl_app.engines.watcher import Watcher
from fl_app.experiment.config import Experiment
from fl_app.experiment.limits import check_limits
from fl_app.experiment.toml import Value
from fl_app.store.runs import RunDir

Main = Callable[[Grid, Context], None]
"""The server of a run, once it has clients to talk to."""


class Engine(NamedTuple):
    """A way to run clients."""

    about: str
    start: Callable[[int, dict[str, Value], Main, int], None]
    """(number of clients, run config, server, workers): make the clients and run the server."""


def _inline(clients: int, config: dict[str, Value], main: Main, workers: int) -> None:
    from fl_app.client_app import app
    from fl_app.engines.pool import PoolGrid

    with PoolGrid(app, clients, config, workers) as grid:
        main(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config))


def _ray(clients: int, config: dict[str, Value], main: Main, workers: int) -> None:
    from fl_app.engines.ray import run_ray

    run_ray(clients, config, main, workers)


def _flower(clients: int, config: dict[str, Value], main: Main, workers: int) -> None:
    from fl_app.engines.flower import run_flower

    run_flower(clients, config, main, workers)


ENGINES = {
    "inline": Engine("in this process and copies of it, one per core: the fastest on one machine", _inline),
    "ray": Engine("in Ray actors that stay, on this machine or on a cluster", _ray),
    "flower-ray": Engine("Flower's own simulation, for comparison: ten rounds a second at most", _flower),
}


def run(
    experiment: Experiment,
    engine: str,
    watcher: Watcher,
    *,
    resume: bool = False,
    make_beside: MakeBeside | None = None,
    workers: int = 0,
) -> RunDir:
    """Run an experiment on an engine; `resume` goes on with the run in its run directory.

    `workers` are the processes that clients are computed in, 0 for one per core; results do not depend on it.
    """
    if engine not in ENGINES:
        raise SpecError(f"unknown engine '{engine}': {suggest(engine, ENGINES)}")
    check_limits(experiment)  # an engine makes something per client before the server can look
    logging.getLogger("flwr").setLevel(logging.ERROR)
    finished: list[RunDir] = []

    def main(grid: Grid, context: Context) -> None:
        finished.append(serve(grid, context, watcher, resume=resume, make_beside=make_beside))

    ENGINES[engine].start(experiment.clients, experiment.run_config(), main, workers)
    return finished[0]


__all__ = ["ENGINES", "Engine", "Main", "run"]
