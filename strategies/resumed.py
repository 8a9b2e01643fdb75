"""Going on with a run: Flower's `start` counts rounds from 1, so a resumed run has to shift them."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy


class Resumed(Strategy):
    """Any strategy, after `done` rounds: it sees round `done + 1` where Flower says 1."""

    def __init__(self, strategy: Strategy, done: int) -> None:
        self.strategy, self.done = strategy, done

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Delegate."""
        return self.strategy.configure_train(server_round + self.done, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Delegate."""
        return self.strategy.aggregate_train(server_round + self.done, replies)

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Delegate."""
        return self.strategy.configure_evaluate(server_round + self.done, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Delegate."""
        return self.strategy.aggregate_evaluate(server_round + self.done, replies)

    def summary(self) -> None:
        """Delegate."""
        self.strategy.summary()
