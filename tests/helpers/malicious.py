"""Runs with a malicious server, and what their read-outs come to."""

import adversary
from fl_app.attacking.session import task_spec
from fl_app.experiment.assets import assets_of
from fl_app.experiment.truth import true_aggregate
from fl_app.scoring.base import Tools
from fl_app.scoring.score import score
from helpers.engines import captures_of


def recovered(experiment, seen, attack=None):
    """The share of a target's images that its attack rebuilds above 30 dB."""
    task = task_spec(experiment).build()
    guess = adversary.build(attack or experiment.craft.readout)([seen], task, 0)
    clients = range(experiment.clients) if seen.client == -1 else [seen.client]
    truth = true_aggregate(assets_of(experiment), clients, seen.server_round)
    return score(guess.x[0], guess.y[0], *truth, tools=Tools(lpips=False)).values["above_30db"].mean().item()


def shares(experiment, run):
    """The share for every target of a run."""
    return [recovered(experiment, one) for one in captures_of(run)]
