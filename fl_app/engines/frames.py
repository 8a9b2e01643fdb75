"""Messages on their way to another process of ours: weights as plain bytes, once however many messages share them."""

import json
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Proto

from fl_app.core.wire import TensorArray, to_record

BODY = "thorns.body"
"""The serialisation type of an array that stands for a whole record: its only number says which body that is."""
ALIGNED = 64


class Frames(NamedTuple):
    """Messages without their weights, as Flower's protobuf, and these weights: a body for each record of tensors."""

    heads: list[bytes]
    bodies: list[bytes]


def to_frames(messages: Sequence[Message]) -> Frames:
    """Messages as bytes. Only records of tensors in this process become bodies, others travel as Flower sends them."""
    bodies: list[bytes] = []
    known: dict[int, ArrayRecord] = {}
    heads = []
    for message in messages:
        full = message.content if message.has_content() else None
        if full is not None:
            message.content = RecordDict({key: _hollow(record, bodies, known) for key, record in full.items()})
        heads.append(message_to_proto(message).SerializeToString())
        if full is not None:
            message.content = full
    return Frames(heads, bodies)


def from_frames(heads: Sequence[bytes], bodies: Sequence[Any]) -> list[Message]:
    """The messages; bodies are buffers, which the tensors share if they can be written to."""
    records = [_read(body) for body in bodies]
    messages = []
    for head in heads:
        message = message_from_proto(Proto.FromString(head))
        if message.has_content():
            message.content = RecordDict({key: _full(record, records) for key, record in message.content.items()})
        messages.append(message)
    return messages


def _hollow(record: Any, bodies: list[bytes], known: dict[int, ArrayRecord]) -> Any:
    if not isinstance(record, ArrayRecord) or not all(isinstance(array, TensorArray) for array in record.values()):
        return record
    if id(record) not in known:
        known[id(record)] = ArrayRecord({BODY: Array("uint8", (len(bodies),), BODY, b"")})
        bodies.append(_written(record))
    return known[id(record)]


def _full(record: Any, records: list[ArrayRecord]) -> Any:
    if isinstance(record, ArrayRecord) and record.keys() == {BODY} and record[BODY].stype == BODY:
        return records[record[BODY].shape[0]]
    return record


def _padding(size: int) -> int:
    return -size % ALIGNED


def _written(record: ArrayRecord) -> bytes:
    tensors = {name: array.tensor.contiguous() for name, array in record.items() if isinstance(array, TensorArray)}
    table = json.dumps([[name, str(value.dtype)[6:], list(value.shape)] for name, value in tensors.items()]).encode()
    parts: list[Any] = [len(table).to_bytes(8, "little"), table, bytes(_padding(8 + len(table)))]
    for value in tensors.values():
        parts += [value.reshape(-1).view(torch.uint8).numpy().data, bytes(_padding(value.nbytes))]
    return b"".join(parts)


def _read(body: Any) -> ArrayRecord:
    """A record over a buffer that nobody else writes to; a buffer that cannot be written to is copied."""
    view = memoryview(body)
    data = torch.frombuffer(bytearray(body) if view.readonly else view, dtype=torch.uint8)
    size = int.from_bytes(view[:8], "little")
    start = 8 + size
    tensors = {}
    for name, kind, shape in json.loads(bytes(view[8:start])):
        start += _padding(start)
        dtype = getattr(torch, kind)
        length = prod(shape) * dtype.itemsize
        tensors[name] = data[start : start + length].view(dtype).view(shape)
        start += length
    return to_record(tensors)
