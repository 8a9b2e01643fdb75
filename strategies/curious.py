"""The honest-but-curious server: it does its work to the last bit, and keeps what it sees."""

import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from typing import Literal, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_app.core.local import MOST_EXAMPLES, LocalRule, Tensors, finite
from fl_app.core.observation import Knowledge, Observation, Visibility
from fl_app.core.wire import WireError, to_tensors
from strategies.fedsgd import FedSGD, Rejected, read_update
from strategies.malicious import Malicious
from strategies.replies import aggregate, difference, equal, own, partition_of
from strategies.wrapping import Wrapping, innermost

log = logging.getLogger("thorns")
Payload = Literal["update", "weights"]
MOST_REASONS = 100


class Keeper(Protocol):
    """Where observations go: `Captures(FOLDER)`, or anything else that can keep one."""

    def write(self, observation: Observation, /) -> object:
        """Keep an observation; ValueError or OSError if it cannot."""
        ...


class Curious(Wrapping):
    """Any strategy, whose valid replies are also written to `captures` and handed to `on_capture`.

    `rule` says how the clients make their updates; Flower's messages do not. With `payload="weights"` replies are new
    weights, and the observation holds new - old. That difference is itself exact for small changes, but the client
    rounded its new weights to float32 before: a change d of a weight w comes back with a relative error of up to about
    6e-8 * |w / d|, so a change a million times smaller than its weight keeps one digit, and a smaller one is lost.

    Clients have the numbers of the FedSGD roster. Around another strategy they have those that all replies of the first
    round name as "partition-id" among their metrics or config; if one does not, nodes are numbered as they first appear, by
    node id. There, too, the rule of a client with another number of examples has the steps of as many epochs. Nothing that
    goes wrong here reaches training: each reason is logged once, and `lost` counts what it cost.
    """

    def __init__(
        self,
        strategy: Strategy,
        captures: Keeper,
        rule: LocalRule,
        *,
        rounds: Container[int] | None = None,
        clients: Container[int] | None = None,
        visibility: Visibility = "individual",
        payload: Payload = "update",
        on_capture: Callable[[Observation], None] | None = None,
        knowledge: Knowledge | None = None,
    ) -> None:
        if visibility == "aggregate" and clients is not None:
            raise ValueError("a server that sees only the aggregate sees no single clients: leave `clients` out")
        self._inner = innermost(strategy)
        self._fedsgd = self._inner if isinstance(self._inner, FedSGD) else None
        if payload == "weights" and (rule.kind != "delta" or self._fedsgd):
            raise ValueError("payload='weights' needs a rule of kind 'delta' and a strategy whose clients send weights")
        super().__init__(strategy)
        self.captures, self.rule = captures, rule
        self.rounds, self.clients, self.visibility, self.payload = rounds, clients, visibility, payload
        self.on_capture, self.knowledge = on_capture, knowledge or Knowledge()
        self.lost = 0
        """Observations that could not be written."""
        self._sent: dict[int, Tensors] = {}
        """Node -> the weights that it was sent in this round, one object where they are the same."""
        self._copied: dict[int, Tensors] = {}
        self._numbers: dict[int, int] = {}
        self._partitions: dict[int, int] | None = None
        """Node -> the partition that it said it has; None before the first replies, empty if they did not all say one."""
        self._said: set[str] = set()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Delegate, and remember which weights were sent to whom."""
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self._sent = {}
        try:
            for node in sorted(message.metadata.dst_node_id for message in messages):
                self._numbers.setdefault(node, len(self._numbers))
            if self.rounds is None or server_round in self.rounds:
                self._remember(server_round, arrays, messages)
        except Exception as error:
            self._complain(f"round {server_round} is not captured", f"{type(error).__name__}: {error}")
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Keep what the valid replies show, then delegate with the same replies."""
        replies = list(replies)
        if self._sent:
            try:
                self._watch(server_round, replies)
            except Exception as error:
                self._complain(f"round {server_round} is not captured", f"{type(error).__name__}: {error}")
        return self.strategy.aggregate_train(server_round, replies)

    def _complain(self, what: str, reason: str, details: str = "") -> None:
        """Warn of each reason once: a full disk fails every capture of a thousand rounds; replies can make up many."""
        if reason not in self._said and len(self._said) < MOST_REASONS:
            self._said.add(reason)
            log.warning("%s: %s (training goes on; said once)", what, details or reason)

    def _client(self, node: int) -> int:
        roster = self._fedsgd.roster.client_of if self._fedsgd else self._partitions or self._numbers
        if node not in roster:
            raise Rejected("it is from an unknown node")
        return roster[node]

    def _number(self, replies: list[Message]) -> None:
        """Learn which partitions the nodes of a strategy that is not ours have, if they say it."""
        told = {message.metadata.src_node_id: partition_of(message) for message in replies if not message.has_error()}
        said = {node: number for node, number in told.items() if number is not None and node in self._numbers}
        if self._partitions is None and told:
            self._partitions = said if len(said) == len(told) == len(set(said.values())) else {}
            if not self._partitions:
                names = ", ".join(f"client {number} is node {node}" for node, number in list(self._numbers.items())[:3])
                log.warning(
                    "clients are numbered by node id (%s, ...), not by their data: let replies carry metrics['partition-id'], "
                    "or match them by `thorns gate --truth`",
                    names,
                )
        elif self._partitions:
            for node, number in said.items():
                if number not in self._partitions.values():
                    self._partitions.setdefault(node, number)

    def _rule(self, number: int) -> LocalRule:
        """The rule of a client with so many examples: as many epochs, if that can be told."""
        if self._fedsgd or self.visibility == "aggregate" or number == self.rule.num_examples:
            return self.rule
        own = self.rule.for_examples(number)
        if own is None:
            reason = "a client's number of examples does not fit the rule"
            details = f"{number} examples instead of {self.rule.num_examples}: how many steps these are cannot be told"
            self._complain(reason, reason, f"{details}, so attacks on this client take the rule as it is, and may fail by that")
        elif own.steps != self.rule.steps:
            reason = "clients with other numbers of examples take other numbers of steps"
            details = f"with {number} examples it is taken to be {own.code()}, as many epochs as {self.rule.code()}"
            self._complain(reason, reason, f"{details}; `thorns fit-rule` checks that")
        return own or self.rule

    def _remember(self, server_round: int, arrays: ArrayRecord, messages: list[Message]) -> None:
        """Take the weights from the messages, which need not carry those that the strategy was given."""
        sent = {}
        for message in messages:
            record = next((record for record in message.content.values() if isinstance(record, ArrayRecord)), None)
            if record is not None:
                sent[message.metadata.dst_node_id] = record
        if not sent:
            return
        usual = arrays if any(record is arrays for record in sent.values()) else sent[min(sent)]
        shared = to_tensors(usual)
        for node, record in sent.items():
            own = shared if record is usual else to_tensors(record)
            self._sent[node] = shared if own is shared or equal(own, shared) else own
        differ = any(own is not shared for own in self._sent.values())
        if self.visibility == "aggregate" and differ and not isinstance(self.strategy, Malicious):
            self._complain(f"round {server_round} is not captured", "an aggregate over different weights explains no example")
            self._sent = {}

    def _watch(self, server_round: int, replies: list[Message]) -> None:
        """Turn the replies into observations, by client."""
        seen: dict[int, Observation] = {}
        if not self._fedsgd and self.visibility == "individual":
            self._number(replies)
        for message in replies:
            node = message.metadata.src_node_id
            try:
                client = self._client(node)
                if client in seen:
                    raise Rejected("it is the client's second reply")
                if self.clients is None or client in self.clients:
                    seen[client] = self._observe(server_round, client, message)
            except (Rejected, WireError) as reason:
                self._complain(f"round {server_round}, the reply of node {node} is not captured", str(reason))
        found = [seen[client] for client in sorted(seen)]
        if self.visibility == "aggregate" and found:
            found = [aggregate(found)]
        if self.on_capture is not None:
            self._copied = {id(one.params): one.params for one in found}
            self._copied = {key: own(params) for key, params in self._copied.items()}
        for observation in found:
            try:
                self._keep(observation)
            except Exception as error:
                self._complain("handing on a capture failed", f"{type(error).__name__}: {error}")

    def _observe(self, server_round: int, client: int, message: Message) -> Observation:
        node = message.metadata.src_node_id
        if node not in self._sent:
            raise Rejected("it was not asked in this round")
        params = self._sent[node]
        # What other strategies' clients count is theirs to say.
        most = self.rule.num_examples if self._fedsgd else MOST_EXAMPLES
        brought, number = read_update(message, params, most, getattr(self._inner, "weighted_by_key", "num-examples"))
        update = {name: brought[name] for name in params}
        if self.payload == "weights":
            update = {name: difference(value, params[name]) for name, value in update.items()}
        if not all(finite(value) for value in update.values()):
            raise Rejected("its update has values that are not finite")
        return Observation(
            params=params,
            update=update,
            rule=self._rule(number),
            num_examples=number,
            server_round=server_round,
            node_id=node,
            client=client,
            knowledge=self.knowledge,
        )

    def _keep(self, observation: Observation) -> None:
        """Write an observation and hand it on; on_capture gets it even if the disk is full."""
        try:
            self.captures.write(observation)
        except (ValueError, OSError) as error:
            self.lost += 1
            reason = getattr(error, "reason", type(error).__name__)  # without the file's name: said once for all of them
            self._complain("a capture is lost, later ones are tried again", reason, str(error))
        if self.on_capture is not None:
            # Copies: what is done with them must not reach training.
            self.on_capture(replace(observation, params=self._copied[id(observation.params)], update=own(observation.update)))
