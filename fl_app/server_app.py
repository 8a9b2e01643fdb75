"""The Flower server app: what `flwr run` starts."""

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import HttpGrid

from fl_app.attacking.background import beside
from fl_app.engines.grpc.grid import AdaptiveGrid
from fl_app.engines.serving import serve
from fl_app.engines.watcher import Watcher

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Entry point of `flwr run`; our log lines go where Flower's go."""
    log = logging.getLogger("thorns")
    log.handlers, log.propagate = logging.getLogger("flwr").handlers, False
    log.setLevel(logging.INFO)
    if isinstance(grid, HttpGrid):
        grid = AdaptiveGrid(grid)
    serve(grid, context, Watcher(), make_beside=beside)
