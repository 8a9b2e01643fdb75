"""What replies of clients say, and what several of them show together."""

import torch
from flwr.app import ConfigRecord, Message, MetricRecord

from fl_app.core.local import MOST_EXAMPLES, Tensors
from fl_app.core.observation import Observation


def partition_of(message: Message) -> int | None:
    """The partition that a reply says is its client's, among its metrics or config."""
    records = [record for record in message.content.values() if isinstance(record, MetricRecord | ConfigRecord)]
    found = [record["partition-id"] for record in records if "partition-id" in record]
    number = found[0] if found else None
    # `type`, not isinstance: True is a whole number to Python.
    return number if type(number) is int and 0 <= number <= MOST_EXAMPLES else None


def own(tensors: Tensors) -> Tensors:
    """Copies of tensors."""
    return {name: value.detach().clone() for name, value in tensors.items()}


def aggregate(seen: list[Observation]) -> Observation:
    """What secure aggregation shows of a round: the mean of its updates weighted by their examples, and no client."""
    first, total = seen[0], sum(one.num_examples for one in seen)
    update = {}
    for name, like in first.params.items():
        # Counters among the weights (BatchNorm has one) are averaged as float64 and rounded.
        mean = torch.zeros_like(like, dtype=like.dtype if like.is_floating_point() else torch.float64)
        for one in seen:
            mean.add_(one.update[name], alpha=one.num_examples / total)
        update[name] = (mean if like.is_floating_point() else mean.round()).to(like.dtype)
    return Observation(
        params=first.params,
        update=update,
        rule=first.rule,
        num_examples=total,
        server_round=first.server_round,
        client=-1,
        visibility="aggregate",
        sent={one.client: different(one.params, first.params) for one in seen if one.params is not first.params},
        knowledge=first.knowledge,
    )


def different(params: Tensors, usual: Tensors) -> Tensors:
    """The tensors of a client that are not the usual ones."""
    return {name: value for name, value in params.items() if not torch.equal(value, usual[name])}


def difference(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """The change; of truth values, where they differ."""
    return new ^ old if new.dtype == torch.bool else new - old


def equal(a: Tensors, b: Tensors) -> bool:
    """Whether both hold the same values under the same names."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
