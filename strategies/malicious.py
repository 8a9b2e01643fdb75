"""The malicious server: it sends weights that make the answers leak, and trains on as far as they allow."""

from collections.abc import Container, Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_app.core.local import Tensors
from fl_app.core.wire import to_record, to_tensors
from strategies.crafts import Craft, Scene
from strategies.fedsgd import FedSGD
from strategies.wrapping import Wrapping, innermost


class Malicious(Wrapping):
    """Any strategy, whose messages of some rounds carry crafted weights; what it keeps itself stays honest.

    After a round the crafted tensors are those from before it again. Where answers to crafted weights train nothing, all
    of the weights are.
    """

    def __init__(self, strategy: Strategy, craft: Craft, scene: Scene, rounds: Container[int]) -> None:
        craft.check(scene.rule)
        craft.fits(scene.model)
        super().__init__(strategy)
        self.craft, self.scene, self.rounds = craft, scene, rounds
        self._numbers: dict[int, int] = {}
        self._kept: Tensors = {}
        """The honest values of what was crafted in this round."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Delegate, and put crafted weights into the messages."""
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self._kept = {}
        if server_round not in self.rounds:
            return messages
        honest = to_tensors(arrays)
        shared = self.craft.weights(honest, server_round, self.scene)
        common = {**honest, **shared}
        record = to_record(common)
        self._kept = {name: honest[name] for name in shared}
        for message in messages:
            node = message.metadata.dst_node_id
            own = self.craft.own(common, self._client(node), self.scene)
            self._kept |= {name: honest[name] for name in own}
            sent = to_record({**common, **own}) if own else record
            content = {name: sent if isinstance(one, ArrayRecord) else one for name, one in message.content.items()}
            message.content = RecordDict(content)
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Delegate, and take back what the craft changed."""
        if self._kept and not self.craft.trains:
            inner = innermost(self.strategy)
            return None, inner.count(server_round, replies) if isinstance(inner, FedSGD) else None
        arrays, metrics = self.strategy.aggregate_train(server_round, replies)
        if arrays is not None and self._kept:
            arrays = to_record({**to_tensors(arrays), **self._kept})
        return arrays, metrics

    def _client(self, node: int) -> int:
        """The number of a client; around a strategy that has none, nodes are numbered as they are first asked."""
        inner = innermost(self.strategy)
        if isinstance(inner, FedSGD):
            return inner.roster.client_of[node]
        return self._numbers.setdefault(node, len(self._numbers))
