"""What the clients really used; only scoring, bounds and the granting of labels may import this, an attack never."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_app.core.observation import Key
from fl_app.core.space import attribute_of
from fl_app.data.batches import round_positions
from fl_app.experiment.assets import Assets
from strategies.roster import sample_clients


def true_positions(assets: Assets, client: int, server_round: int) -> Tensor:
    """Where in the training split the examples of a client's round are: int64 (n,)."""
    share = assets.shares[client]
    wanted = assets.experiment.rule.num_examples
    return share[round_positions(assets.experiment.seed, client, server_round, wanted, len(share))]


def true_attributes(assets: Assets, key: Key, column: str) -> Tensor:
    """Which value of a column each example of a target has, int64 (n,)."""
    clients = clients_behind(assets, key[1], key[0])
    used = assets.splits.train.part(torch.cat([true_positions(assets, client, key[0]) for client in clients]))
    return attribute_of(assets.space, column, used.x, used.a)


def true_examples(assets: Assets, client: int, server_round: int) -> tuple[Tensor, Tensor]:
    """What a client used in a round: x (n, *shape) in [0, 1], y int64 (n,)."""
    return assets.batch(client, server_round)


def clients_behind(assets: Assets, client: int, server_round: int) -> list[int]:
    """The clients whose examples are in a target: one, or for an aggregate (client -1) all that were asked in the round."""
    chosen = assets.experiment
    if client != -1:
        return [client]
    return sample_clients(chosen.clients, chosen.fraction, chosen.min_clients, chosen.seed, server_round)


def true_aggregate(assets: Assets, clients: Sequence[int], server_round: int) -> tuple[Tensor, Tensor]:
    """What these clients used in a round, one after the other: the truth behind an aggregate."""
    if not clients:
        raise ValueError("an aggregate of no clients has no truth")
    batches = [true_examples(assets, client, server_round) for client in clients]
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
