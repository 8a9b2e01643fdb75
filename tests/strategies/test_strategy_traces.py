"""Every function of a strategy gives what it gave, in rounds with good and bad replies.

After a change that is meant: scripts/keep_traces.py, and the difference of tests/golden/traces says what changed.
"""

import pytest
import torch
from flwr.app import ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg

from fl_app.core.local import LocalRule
from fl_app.core.wire import to_record
from helpers.replies import good, make, tensors
from helpers.traces import check, traced
from strategies import Curious, FedDelta

DELTA = LocalRule(kind="delta", batch_size=4, steps=2, lr=0.1)
WAVES = {name: torch.arange(1.0, 1 + value.numel()).view_as(value).cos() for name, value in tensors(0).items()}


def varied(client, server_round):
    """An update of its own from each client in each round."""
    update = {name: (value * (1 + client) - server_round).cos() for name, value in WAVES.items()}
    return to_record(update), MetricRecord({"num-examples": 1 + client})


def odd(client, server_round):
    """One that fails, one without numbers, one with a wrong shape, and good ones."""
    if client == 1:
        raise RuntimeError("broken")
    if client == 2:
        return to_record({name: value / 0 for name, value in tensors(1).items()}), MetricRecord({"num-examples": 2})
    if client == 3 and server_round == 2:
        return to_record({"a": torch.ones(1), "b": torch.ones(4)}), MetricRecord({"num-examples": 2})
    return varied(client, server_round)


CASES = {
    "sgd": (varied, {"optimizer": "sgd(lr=0.5, momentum=0.9, weight_decay=0.1, drop_at=[2], drop=0.5)"}),
    "adam": (varied, {"optimizer": "adam(lr=0.1, beta1=0.8, beta2=0.9, drop_at=[2, 3])", "weighting": "equal"}),
    "delta": (varied, {"kind": FedDelta, "rule": DELTA, "fraction": 0.4, "seed": 3}),
    "few": (varied, {"fraction": 0.2, "min_clients": 3, "seed": 5}),
    "odd": (odd, {"min_clients": 2}),
    "nobody": (lambda client, _: odd(1, 1), {}),
    "nothing": (lambda client, _: good(0), {}),
}


class Kept(list):
    """Keeps observations in memory."""

    def write(self, observation):
        self.append(observation)


@pytest.mark.parametrize("watched", ["", "individual", "aggregate"])
@pytest.mark.parametrize("name", CASES)
def test_every_function_of_a_strategy_gives_what_it_gave(name, watched):
    answer, settings = CASES[name]

    def work():
        plain, grid = make(answer, clients=5, **settings)
        strategy, handed = plain, []
        if watched:
            strategy = Curious(plain, Kept(), plain.rule, visibility=watched, on_capture=handed.append, rounds=range(1, 3))
        weights = to_record(WAVES)
        for server_round in (1, 2, 3):
            replies = grid.send_and_receive(strategy.configure_train(server_round, weights, ConfigRecord({"k": 1}), grid))
            weights = strategy.aggregate_train(server_round, replies)[0] or weights
        again, _ = make(answer, clients=5, **settings)
        again.restore_optimizer(plain.optimizer_state())
        _ = again.optimizer_state(), plain.finite()

    check(f"strategy-{name}{watched and '-'}{watched}", traced(work, "strategies/"))


def test_a_client_with_another_number_of_examples_takes_as_many_epochs():
    watching = Curious(FedAvg(), Kept(), DELTA)
    assert [watching._rule(number).steps for number in (1, 4, 8, 12)] == [1, 1, 2, 3]
    assert watching._rule(1).batch_size == 1
    odd = LocalRule(kind="delta", batch_size=4, steps=3, lr=0.1, examples=8)
    assert Curious(FedAvg(), Kept(), odd)._rule(4) == odd  # of one epoch and a half nobody can tell
