"""Replies from a SuperLink, each by itself: one that is damaged, forged, too large or half sent spoils no other.

Flower's own grid fetches all replies in one go and lets an error in one end the run; waits up to three minutes for the rest
of a reply whose sender was killed; believes the sender that a reply names; and has no limit on its size.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import cast

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import RunNotRunningException
from flwr.superlink.grid import HttpGrid

MOST_OBJECTS = 100_000
"""Parts of one reply; an array that is not packed is two."""


class BadReply(ValueError):
    """A reply that cannot be had; the message says why."""


@dataclass
class Arriving:
    """A reply of which some parts are still to come."""

    announced: ProtoMessage
    tree: ObjectTree
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0


class Puller:
    """Fetches the replies to given messages."""

    def __init__(self, grid: HttpGrid) -> None:
        self._grid = grid
        self._arriving: dict[str, Arriving] = {}
        self._pool = ThreadPoolExecutor(2, "replies")  # as many at a time as Flower fetches

    def pull(self, limits: dict[str, int]) -> dict[str, Message | BadReply]:
        """The replies that are there, by the message that each answers; `limits`: the most bytes for each that is awaited."""
        new = [key for key in limits if key not in self._arriving]
        if new:
            answer = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=new))
            for announced, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                self._arriving[announced.metadata.reply_to_message_id] = Arriving(announced, tree)
        keys = [key for key in self._arriving if key in limits]
        found = zip(keys, self._pool.map(lambda key: self._complete(self._arriving[key], limits[key]), keys), strict=True)
        done = {key: reply for key, reply in found if reply is not None}
        for key in done:
            del self._arriving[key]
        return done

    def forget(self, key: str) -> None:
        """Wait no longer for the rest of a reply."""
        if arriving := self._arriving.pop(key, None):
            self._confirm(arriving)

    def _complete(self, reply: Arriving, limit: int) -> Message | BadReply | None:
        """A whole reply, what is wrong with it, or None if parts are still missing."""
        try:
            if not self._fetch(reply, limit):
                return None
            self._confirm(reply)
            return _read(reply)
        except (httpx.HTTPError, RunNotRunningException):
            raise  # of the connection, not of this reply
        except BadReply as problem:
            self._confirm(reply)
            return problem

    def _fetch(self, reply: Arriving, limit: int) -> bool:
        """Whether all parts are there."""
        run_id, client = self._grid.run.run_id, self._grid._runtime_client
        for number, part in enumerate(iterate_object_tree(reply.tree)):
            if number > MOST_OBJECTS:
                raise BadReply(f"it has more than {MOST_OBJECTS} parts")
            if part.object_id in reply.contents:
                continue
            answer = client.PullObject(PullObjectRequest(node=self._grid.node, run_id=run_id, object_id=part.object_id))
            if not answer.object_found:
                raise BadReply("a part of it never came")
            if not answer.object_available:
                return False
            reply.size += len(answer.object_content)
            if reply.size > limit:
                raise BadReply(f"it is larger than {limit / 1e6:.1f} MB, several times what was sent to it")
            reply.contents[part.object_id] = answer.object_content
        return True

    def _confirm(self, reply: Arriving) -> None:
        """Let the SuperLink drop its copy."""
        request = ConfirmMessageReceivedRequest(
            node=self._grid.node, run_id=self._grid.run.run_id, message_object_id=reply.announced.metadata.message_id
        )
        self._grid._runtime_client.ConfirmMessageReceived(request)


def _read(reply: Arriving) -> Message:
    """The message that the parts make; its sender must be the one whose key sent it."""
    announced = reply.announced.metadata
    try:
        message = cast(Message, inflate_object_from_contents(announced.message_id, reply.contents))
        says = (message.metadata.src_node_id, message.metadata.reply_to_message_id)
        _ = message.has_error() or list(message.content.items())
    except Exception as error:  # Flower's readers raise whatever bytes from elsewhere make them raise
        raise BadReply(f"its bytes are not a message ({type(error).__name__})") from None
    if says != (announced.src_node_id, announced.reply_to_message_id):
        raise BadReply("it names another sender or question than it was sent with")
    message.metadata.__dict__["_message_id"] = announced.message_id
    return message
