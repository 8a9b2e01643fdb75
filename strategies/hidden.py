"""What secure aggregation and encrypted aggregation share: the server behind them is shown the mean of a round and no reply."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_app.core.local import Tensors
from fl_app.core.wire import to_record, to_tensors

EXAMPLES = "num-examples"
LEAST_CLIENTS = 3
"""Of two clients each knows the other's update from the mean; of one so does the server."""
MOST_MASKED = 2**32 // 2**22
"""Of more clients the sum of quantised entries runs over the modulus of SecAgg+ as Flower has it."""


class CannotHide(ValueError):
    """A message that does not fit the protocol; the message says why, and nothing of the data."""


def arrays_of(message: Message) -> ArrayRecord:
    """The one array record of a message."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise CannotHide(f"secure aggregation needs one array record in a message, not {len(records)}")
    return records[0]


def update_of(request: Message, reply: Message) -> tuple[dict[str, Array], int]:
    """(arrays in the order of the request, number of examples) of a plain reply, for a mod to hide."""
    if reply.has_error():
        raise CannotHide(reply.error.reason)
    asked, arrays, metrics = arrays_of(request), arrays_of(reply), list(reply.content.metric_records.values())
    number = metrics[0].get(EXAMPLES) if len(metrics) == 1 else None
    if arrays.keys() != asked.keys() or not isinstance(number, int):
        raise CannotHide(f"secure aggregation needs replies with the arrays of the request and {EXAMPLES} alone")
    return {name: arrays[name] for name in asked}, number


class Hidden(Strategy):
    """A strategy that is shown the weighted mean of a round in place of every reply; subclasses write `exchange`."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self._replies: list[Message] = []

    @abstractmethod
    def exchange(self, server_round: int, requests: dict[int, Message], grid: Grid) -> list[Message]:
        """Run the protocol with these nodes: `shown` of those who stayed, and error replies of others where there are any."""

    def summary(self) -> None:
        """Delegate."""
        self.strategy.summary()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Run the whole protocol: it takes several exchanges of messages, and Strategy.start leaves room for one."""
        messages = self.strategy.configure_train(server_round, arrays, config, grid)
        requests = {message.metadata.dst_node_id: message for message in messages}
        self._replies = self.exchange(server_round, requests, grid) if requests else []
        return []

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Delegate, with what the protocol gave."""
        found, self._replies = self._replies, []
        return self.strategy.aggregate_train(server_round, found)

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Delegate."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Delegate."""
        return self.strategy.aggregate_evaluate(server_round, replies)


def like(requests: Mapping[int, Message]) -> Tensors:
    """The weights that a round was asked with: names, shapes and types of the mean."""
    return to_tensors(arrays_of(next(iter(requests.values()))))


def shown(requests: Mapping[int, Message], counts: Mapping[int, int], mean: Tensors) -> list[Message]:
    """A reply for each client in the mean, all with that mean and each with its own number of examples."""
    kinds = like(requests)
    record = to_record({name: _as(mean[name], one.dtype) for name, one in kinds.items()})
    return [
        Message(RecordDict({"arrays": record, "metrics": MetricRecord({EXAMPLES: number})}), reply_to=requests[node])
        for node, number in counts.items()
    ]


def _as(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (value if dtype.is_floating_point else value.round()).to(dtype)
