"""The server's side of a deployment, around Flower's own Grid: short polls, packed arrays, an answer or a reason from all."""

import logging
import time
from collections.abc import Iterable
from typing import cast

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.superlink.grid import HttpGrid

from fl_app.engines.around import GridAround
from fl_app.engines.grpc.packing import Packed, announced, pack_content, unpack_message
from fl_app.engines.grpc.polling import Backoff
from fl_app.engines.grpc.pulling import BadReply, Puller

log = logging.getLogger("thorns")
CLOCK_SECONDS = 10.0
"""By how much the clocks of server and clients may differ."""
MOST_TIMES, SLACK_BYTES = 4, 1_000_000


class AdaptiveGrid(GridAround):
    """A Grid around Flower's own, that looks for replies after milliseconds, and less often the longer it waits."""

    def __init__(self, grid: Grid, longest: float = 0.5) -> None:
        super().__init__(grid)
        self._backoff = Backoff(longest=longest)
        self._asked: dict[str, Message] = {}
        """Messages that wait for their reply, by id."""
        self._puller = Puller(grid) if isinstance(grid, HttpGrid) else None
        self._packing: set[int] = set()
        """Nodes that can read packed messages; Flower's own SuperNodes cannot."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; their ids."""
        messages = list(messages)
        done: Packed = {}
        for message in messages:
            if message.metadata.dst_node_id in self._packing:
                message.content = pack_content(message.content, done)
        ids = list(self._grid.push_messages(messages))
        self._asked |= {key: message for key, message in zip(ids, messages, strict=True) if key}
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there; in place of one that cannot be had, an error that says why."""
        replies = []
        for reply in self._replies(list(message_ids)):
            asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if asked and reply.has_error() and reply.metadata.src_node_id != asked.metadata.dst_node_id:
                # By the SuperLink, in its own name: for a node that is gone, or that never sent what it announced.
                gone = reply.error.code == ErrorCode.NODE_UNAVAILABLE
                reason = "its node is gone" if gone else reply.error.reason
                reply = Message(Error(reply.error.code, reason), reply_to=asked)
            self._read(reply)
            replies.append(reply)
        return replies

    def _replies(self, keys: list[str]) -> list[Message]:
        if self._puller is None:
            return list(self._grid.pull_messages(keys))
        limits = {key: limit_of(self._asked[key]) for key in keys if key in self._asked}
        found = self._puller.pull(limits)
        return [self._instead(key, str(reply)) if isinstance(reply, BadReply) else reply for key, reply in found.items()]

    def _instead(self, key: str, reason: str) -> Message:
        """An error in place of the reply to a message."""
        return Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, reason), reply_to=self._asked[key])

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
        """Send messages and collect the replies; after `timeout` seconds an error stands for each that is not there."""
        messages = list(messages)
        for message in messages if timeout is not None else []:
            # A node that is behind must not be given what nobody waits for any more.
            message.metadata.ttl = min(message.metadata.ttl, cast(float, timeout) + CLOCK_SECONDS)
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
        for key in sorted(waiting):
            replies.append(self._instead(key, f"no reply within {timeout:g} s"))
            self._asked.pop(key)
            if self._puller is not None:
                self._puller.forget(key)
        return replies


def limit_of(message: Message) -> int:
    """The most bytes that a reply may have: a few times the arrays that it answers, or what the request says it expects."""
    arrays = message.content.array_records.values()
    expected = [record.get("reply-bytes", 0) for record in message.content.config_records.values()]
    usual = MOST_TIMES * sum(len(array.data) for record in arrays for array in record.values())
    return SLACK_BYTES + max([usual, *(number for number in expected if isinstance(number, int))])
