"""Strategies around strategies."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy


class Wrapping(Strategy):
    """Does what the strategy inside does; subclasses change some of it."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Delegate."""
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Delegate."""
        return self.strategy.aggregate_train(server_round, replies)

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Delegate."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Delegate."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Delegate."""
        self.strategy.summary()


def innermost(strategy: Strategy) -> Strategy:
    """The strategy inside all wrappers, which keep what they wrap as `strategy`."""
    while isinstance(inner := getattr(strategy, "strategy", None), Strategy):
        strategy = inner
    return strategy
