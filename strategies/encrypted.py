"""Encrypted aggregation: clients seal updates under CKKS, the server sums ciphertexts, one client opens the sum for it.

The key is the clients' alone. The server sees ciphertexts, numbers of examples, and the mean of a round.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fl_app.core.local import Tensors
from fl_app.core.refusal import refusal
from fl_app.core.wire import WireError, to_record, to_tensor, to_tensors
from strategies.ckks import MOST_BYTES, CipherError, Key, Sum, ciphertexts, public_context
from strategies.hidden import EXAMPLES, LEAST_CLIENTS, CannotHide, Hidden, arrays_of, like, shown, update_of
from strategies.roster import one_line

log = logging.getLogger("thorns")
RECORD = "encrypted"
"""The config record of both stages, in requests and replies; also where a client remembers that it may open a sum."""
OPENERS = 3
"""So many clients are asked to open a sum before the round is given up."""


def encrypted_mod(key_of: Callable[[Context], Key]) -> Mod:
    """A mod for a ClientApp that replies with one ArrayRecord and its number of examples; it must be the first of the mods.

    `key_of` finds this client's key: CipherError if it cannot.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type.partition(".")[0] != "train":
            return call_next(message, context)
        asked = message.content.config_records.get(RECORD)
        try:
            if asked is None:
                raise CannotHide("the server asks for a plain update, but this client encrypts: wrap its strategy in Encrypted")
            key = key_of(context)
            if asked.get("stage") == "open":
                return _open(key, dict(asked), message, context)
            rest = {name: record for name, record in message.content.items() if name != RECORD}
            message.content = RecordDict(rest)
            return _seal(key, dict(asked), message, call_next(message, context), context)
        except (CipherError, CannotHide, WireError) as error:
            return refusal(message, f"encrypted_mod: {error}")

    return mod


def _seal(key: Key, asked: dict[str, Any], request: Message, reply: Message, context: Context) -> Message:
    """The update, times its share of the examples, as ciphertexts."""
    arrays, number = update_of(request, reply)
    most, clients = asked.get("most-examples"), asked.get("clients")
    if type(most) is not int or type(clients) is not int or not 1 <= number <= most:
        raise CannotHide(f"the request must say how many examples and clients there are, not {most!r:.20} and {clients!r:.20}")
    if clients < LEAST_CLIENTS:
        raise CannotHide(f"a sum of {clients} clients hides none of them: {LEAST_CLIENTS} at least")
    flat = torch.cat([to_tensor(name, array).reshape(-1).double() for name, array in arrays.items()])
    sealed = key.seal(flat * (number / (most * clients)))
    context.state[RECORD] = ConfigRecord({"may-open": True})
    told = ConfigRecord({"sealed": sealed, "key": key.name, EXAMPLES: number})
    return Message(RecordDict({RECORD: told}), reply_to=request)


def _open(key: Key, asked: dict[str, Any], request: Message, context: Context) -> Message:
    """The sum in the clear; one for each update that this client has sealed, so that a server cannot try out many."""
    if context.state.pop(RECORD, None) is None:
        raise CannotHide("this client opens one sum for each update that it has sent, and has opened that")
    if asked.get("key") != key.name:
        raise CannotHide("the sum is under another encryption key than this client's")
    sealed, entries = asked.get("sealed"), asked.get("entries")
    if not _are_bytes(sealed) or type(entries) is not int or entries < 1:
        raise CannotHide("the request to open a sum brings no ciphertexts, or does not say how many entries they have")
    return Message(RecordDict({"arrays": to_record({"sum": key.open(sealed, entries)})}), reply_to=request)


def _are_bytes(value: Any) -> TypeGuard[list[bytes]]:
    return isinstance(value, list) and all(isinstance(one, bytes) for one in value)


class Encrypted(Hidden):
    """Encrypted aggregation around a strategy; clients need `encrypted_mod`. `max_examples` is the most that one may count."""

    def __init__(self, strategy: Strategy, *, max_examples: int, timeout: float = 3600.0) -> None:
        super().__init__(strategy)
        public_context()  # says now if TenSEAL is missing
        self.max_examples, self.timeout = max_examples, timeout

    def exchange(self, server_round: int, requests: dict[int, Message], grid: Grid) -> list[Message]:
        """Ask for sealed updates, sum the valid ones, have the sum opened."""
        shapes = like(requests)
        total = Sum(sum(value.numel() for value in shapes.values()))
        replies = {reply.metadata.src_node_id: reply for reply in self._ask(requests, total.entries, grid)}
        key = _usual(replies)
        counts: dict[int, int] = {}
        failed = []
        for node, request in requests.items():  # in the strategy's order, not in that of arrival
            try:
                counts[node] = self._add(total, replies.get(node), key)
            except (CannotHide, CipherError) as error:
                failed.append(Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, str(error)), reply_to=request))
        if len(counts) < LEAST_CLIENTS:
            log.warning("round %d: %d clients sent ciphertexts, too few to open their sum", server_round, len(counts))
            return failed
        nodes = list(counts)
        first = server_round % len(nodes)  # the work goes around
        opened = self._opened(server_round, total, key, [*nodes[first:], *nodes[:first]][:OPENERS], grid)
        if opened is None:
            return failed
        mean = opened * (self.max_examples * len(requests) / sum(counts.values()))
        return [*shown(requests, counts, _as_tensors(mean, shapes)), *failed]

    def _ask(self, requests: dict[int, Message], entries: int, grid: Grid) -> list[Message]:
        record = ConfigRecord({"stage": "seal", "most-examples": self.max_examples, "clients": len(requests)})
        # For our own grid, which else takes so long a reply for an attack on the server's memory.
        record["reply-bytes"] = ciphertexts(entries) * MOST_BYTES
        messages = [
            Message(RecordDict({**request.content, RECORD: record}), node, request.metadata.message_type)
            for node, request in requests.items()
        ]
        return list(grid.send_and_receive(messages, timeout=self.timeout))

    def _add(self, total: Sum, reply: Message | None, key: str) -> int:
        """Add a client's ciphertexts to the sum; its number of examples."""
        if reply is None:
            raise CannotHide("it did not answer")
        if reply.has_error():
            raise CannotHide(reply.error.reason)
        told = reply.content.config_records.get(RECORD, ConfigRecord())
        sealed, number = told.get("sealed"), told.get(EXAMPLES)
        if not _are_bytes(sealed) or type(number) is not int or not 1 <= number <= self.max_examples:
            raise CannotHide(f"it brings no ciphertexts, or {EXAMPLES} is not a whole number from 1 to {self.max_examples}")
        if told.get("key") != key:
            raise CannotHide("it is under another encryption key than most: give all clients the same key file")
        total.add(sealed)
        return number

    def _opened(self, server_round: int, total: Sum, key: str, nodes: list[int], grid: Grid) -> Tensor | None:
        """The sum as one of these clients opens it: float64 (entries,); None if nobody does."""
        record = ConfigRecord({"stage": "open", "sealed": total.sealed(), "entries": total.entries, "key": key})
        for node in nodes:
            try:
                (reply,) = grid.send_and_receive([Message(RecordDict({RECORD: record}), node, "train")], timeout=self.timeout)
                if reply.has_error():
                    raise CannotHide(one_line(reply.error.reason))
                values = to_tensors(arrays_of(reply)).get("sum", torch.empty(0))
                if values.dtype != torch.float64 or values.shape != (total.entries,) or not bool(values.isfinite().all()):
                    raise CannotHide(f"it does not answer with {total.entries} finite numbers")
                return values
            except (CannotHide, WireError, ValueError) as error:
                log.warning("round %d: node %d did not open the sum: %s", server_round, node, error)
        return None


def _usual(replies: dict[int, Message]) -> str:
    """The name of the key that most replies are sealed with, the first of them if there are several."""
    told = [reply.content.config_records.get(RECORD, ConfigRecord()) for reply in replies.values() if reply.has_content()]
    names = [name for record in told if isinstance(name := record.get("key"), str)]
    return max(sorted(set(names)), key=names.count, default="")


def _as_tensors(flat: Tensor, shapes: Tensors) -> Tensors:
    parts = flat.split([value.numel() for value in shapes.values()])
    return {name: part.view(value.shape) for (name, value), part in zip(shapes.items(), parts, strict=True)}
