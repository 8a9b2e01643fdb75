"""The server's side of a deployment, around Flower's own Grid: short polls and packed arrays."""

import logging
import time
from collections.abc import Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fl_app.deploy.packing import Packed, announced, pack_content, unpack_message
from fl_app.deploy.polling import Backoff

log = logging.getLogger("thorns")


class AdaptiveGrid(Grid):
    """A Grid around Flower's own, that looks for replies after milliseconds, and less often the longer it waits."""

    def __init__(self, grid: Grid, longest: float = 0.5) -> None:
        self._grid, self._backoff = grid, Backoff(longest=longest)
        self._packing: set[int] = set()
        """Nodes that can read packed messages; Flower's own SuperNodes cannot."""

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Make a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The connected nodes."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; their ids."""
        messages = list(messages)
        done: Packed = {}
        for message in messages:
            if message.metadata.dst_node_id in self._packing:
                message.content = pack_content(message.content, done)
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there."""
        replies = list(self._grid.pull_messages(message_ids))
        for reply in replies:
            self._read(reply)
        return replies

    def _read(self, reply: Message) -> None:
        node = reply.metadata.src_node_id
        if reply.has_error():
            self._packing.discard(node)  # it may have become another kind of node
            return
        if announced(reply):
            self._packing.add(node)
        try:
            unpack_message(reply)
        except ValueError as error:
            log.warning("the reply of node %d: %s", node, error)  # left as it is: the strategy rejects it

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and collect the replies until all are there or `timeout` seconds have passed."""
        waiting = {key for key in self.push_messages(messages) if key}
        deadline = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        self._backoff.begin()
        while waiting and (deadline is None or time.monotonic() < deadline):
            arrived = list(self.pull_messages(waiting))
            replies += arrived
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            if waiting:
                pause = self._backoff.pause()
                time.sleep(pause if deadline is None else max(0.0, min(pause, deadline - time.monotonic())))
        self._backoff.end()
        return replies
