"""Engines: where the clients of a run live. The same experiment gives the same weights on each."""

import logging

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid

from fl_app.engines.serving import MakeBeside, serve
from fl_app.engines.watcher import Watcher
from fl_app.experiment.config import Experiment
from fl_app.experiment.limits import check_limits
from fl_app.store.runs import RunDir

ENGINES = {
    "inline": "in this process, one client after the other: the fastest for small models",
    "ray": "Flower's simulation: clients in parallel in Ray actors",
}


def run(
    experiment: Experiment,
    engine: str,
    watcher: Watcher,
    *,
    resume: bool = False,
    make_beside: MakeBeside | None = None,
) -> RunDir:
    """Run an experiment on an engine; `resume` goes on with the run in its run directory."""
    check_limits(experiment)  # an engine makes something per client before the server can look
    logging.getLogger("flwr").setLevel(logging.ERROR)
    config = experiment.run_config()
    finished: list[RunDir] = []

    def main(grid: Grid, context: Context) -> None:
        finished.append(serve(grid, context, watcher, resume=resume, make_beside=make_beside))

    if engine == "ray":
        from fl_app.engines.ray import run_ray

        run_ray(experiment.clients, config, main)
    else:
        from fl_app.client_app import app
        from fl_app.engines.inline import InlineGrid

        grid = InlineGrid(app, experiment.clients, config)
        main(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config))
    return finished[0]


__all__ = ["ENGINES", "run"]
