"""Which node is which client.

Flower's node ids are random; sampling and summing by them would give other weights on every engine. So the server asks
each node once which client it is, and works with that number.
"""

import logging
import time

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fl_app.core.seeds import generator

log = logging.getLogger("thorns")
IDENTIFY = "query.identify"
AWAY = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE)
"""Of a node that was killed or is slow: it may come back."""


def one_line(text: object, most: int = 500) -> str:
    """What a client says, for a log: its first characters, those that cannot be printed as blanks."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)[:most])


def sample_clients(clients: int, fraction: float, min_clients: int, seed: int, server_round: int) -> list[int]:
    """The clients of a round, sorted: a pure function of its arguments."""
    number = max(min_clients, round(fraction * clients))
    if number >= clients:
        return list(range(clients))
    order = torch.randperm(clients, generator=generator(seed, "clients", server_round))
    return sorted(order[:number].tolist())


class RosterError(RuntimeError):
    """A federation that does not fit the experiment; the message says what to change."""


class Roster:
    """Client number (0 .. expected - 1) -> node id, for the nodes that are connected."""

    def __init__(self, expected: int, patience: float = 300.0) -> None:
        self.expected = expected
        self.patience = patience
        self.client_of: dict[int, int] = {}
        self._ignored: set[int] = set()

    def connected(self, grid: Grid) -> dict[int, int]:
        """The connected clients in order; at first waits until all are there, or for `patience` seconds."""
        deadline = time.monotonic() + self.patience
        first = not self.client_of
        while True:
            present = set(grid.get_node_ids())
            unknown = present - self.client_of.keys() - self._ignored
            if unknown:
                self._identify(grid, sorted(unknown))
            nodes = {client: node for node, client in self.client_of.items() if node in present}
            if not first or len(nodes) >= self.expected:
                break
            if time.monotonic() > deadline:
                log.warning("only %d of %d clients are connected after %.0f s", len(nodes), self.expected, self.patience)
                break
            time.sleep(0.02)
        return dict(sorted(nodes.items()))

    def _identify(self, grid: Grid, nodes: list[int]) -> None:
        questions = [Message(RecordDict({"config": ConfigRecord()}), node, IDENTIFY) for node in nodes]
        problems = {}
        for reply in grid.send_and_receive(questions, timeout=self.patience):
            node = reply.metadata.src_node_id
            if reply.has_error() and reply.error.code in AWAY:
                log.warning("node %d did not say which client it is; it is asked again: %s", node, one_line(reply.error.reason))
                continue
            if reply.has_error():
                problems[node] = f"node {node} cannot take part: {one_line(reply.error.reason)}"
                continue
            answer = reply.content.config_records.get("identity", ConfigRecord())
            client, clients = answer.get("client"), answer.get("clients")
            if not isinstance(client, int) or not 0 <= client < self.expected:
                log.warning(
                    "node %d is ignored: it calls itself client %s of %d", node, one_line(repr(client), 40), self.expected
                )
                self._ignored.add(node)
            elif clients != self.expected:
                problems[node] = (
                    f"the experiment has clients={self.expected}, but the federation has {one_line(repr(clients), 40)} nodes: "
                    f"make them equal, e.g. with flwr run . --federation-config num-supernodes={self.expected}"
                )
            else:
                # A client that was restarted comes back as a new node: the newest one speaks for it.
                for old in [known for known, number in self.client_of.items() if number == client]:
                    del self.client_of[old]
                    self._ignored.add(old)
                self.client_of[node] = client
        if problems and not self.client_of:
            raise RosterError(next(iter(problems.values())))
        for node, problem in problems.items():  # one strange node must not end the run of the others
            log.warning("node %d is ignored: %s", node, problem)
            self._ignored.add(node)
