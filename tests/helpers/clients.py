"""Clients with settings of their own, and what they reply."""

from flwr.app import ConfigRecord

from fl_app.client_app import app
from fl_app.core.local import local_update
from fl_app.core.wire import to_record, to_tensors
from fl_app.engines.inline import InlineGrid
from fl_app.engines.serving import build_strategy
from fl_app.experiment.assets import assets_of
from fl_app.models import parameters_of

NOISE = "dp_gaussian(scale=1.0, clip=None)"


def federation(experiment, own):
    """A grid of the app whose clients have settings of their own: client -> settings."""
    grid = InlineGrid(app, experiment.clients, experiment.run_config())
    for client, settings in own.items():
        grid.contexts[client + 1].node_config.update(settings)
    return grid


def ask(grid, experiment, weights=None, server_round=1):
    """The replies of one round, by client."""
    weights = weights or parameters_of(assets_of(experiment).model)
    requests = build_strategy(experiment).configure_train(server_round, to_record(weights), ConfigRecord(), grid)
    return {reply.metadata.src_node_id - 1: reply for reply in grid.send_and_receive(requests)}


def update_of(reply):
    assert not reply.has_error(), reply.error.reason
    return to_tensors(reply.content["arrays"])


def gradient_of(experiment, client, server_round=1):
    assets = assets_of(experiment)
    x, y = assets.batch(client, server_round)
    return local_update(assets.model, parameters_of(assets.model), x, y, experiment.rule)
