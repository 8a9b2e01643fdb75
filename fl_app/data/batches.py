"""Which of its examples a client uses in a round: a pure function of the seed."""

from functools import lru_cache

import torch
from torch import Tensor

from fl_app.core.local import LocalRule
from fl_app.core.seeds import generator


@lru_cache(maxsize=1024)
def _order(seed: int, client: int, epoch: int, examples: int) -> Tensor:
    return torch.randperm(examples, generator=generator(seed, "batches", client, epoch))


def round_positions(seed: int, client: int, server_round: int, wanted: int, available: int) -> Tensor:
    """Which of a client's `available` examples it uses in a round (from 1): a pure function of its arguments.

    Each epoch is a new permutation, cut into rounds; the remainder too small for a round is left out.
    """
    wanted = min(wanted, available)
    rounds = available // wanted
    epoch, index = divmod(server_round - 1, rounds)
    return _order(seed, client, epoch, available)[index * wanted : (index + 1) * wanted]


def step_positions(seed: int, client: int, server_round: int, rule: LocalRule, available: int) -> list[Tensor] | None:
    """Which of a round's `available` examples each local step of a client uses, if its rule shuffles them; else None.

    Each time around is a new permutation, cut into the batches of the rule.
    """
    if not rule.shuffle:
        return None
    epochs = [step * rule.batch_size // available for step in range(rule.steps)]
    orders = [
        torch.randperm(available, generator=generator(seed, "order", client, server_round, epoch))
        for epoch in range(epochs[-1] + 1)
    ]
    return [orders[epoch][rule.batch(step, available)] for step, epoch in enumerate(epochs)]
