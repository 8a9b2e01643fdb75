"""Rounds of a strategy with the clients of an app, and every reply that the server gets."""

from fl_app.core.wire import to_record, to_tensors
from fl_app.engines.inline import InlineGrid
from fl_app.engines.serving import build_strategy
from fl_app.experiment.assets import assets_of
from fl_app.models import parameters_of


class Watched(InlineGrid):
    """Keeps every reply that the server gets."""

    def __init__(self, *args):
        super().__init__(*args)
        self.replies = []

    def send_and_receive(self, messages, *, timeout=None):
        replies = list(super().send_and_receive(messages, timeout=timeout))
        self.replies += replies
        return replies


def start(experiment, app, wrap=lambda strategy: strategy, rounds=1, grid=Watched, given=None):
    """(weights after some rounds, the grid); `given`: client -> what its node config says beside its number."""
    grid = grid(app, experiment.clients, experiment.run_config())
    for client, settings in (given or {}).items():
        grid.contexts[client + 1].node_config.update(settings)
    weights = to_record(parameters_of(assets_of(experiment).model))
    strategy = wrap(build_strategy(experiment))
    return to_tensors(strategy.start(grid, weights, num_rounds=rounds).arrays), grid
