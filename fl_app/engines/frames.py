"""Messages on their way to another process of ours: each record once, however many messages share it, weights as they are."""

import json
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, Metadata, RecordDict
from flwr.app.message.message import make_message
from flwr.common import serde
from flwr.proto import recorddict_pb2 as proto

from fl_app.core.wire import TensorArray, to_record

ALIGNED = 64
KINDS: dict[str, tuple[Any, Any]] = {
    "array": (serde.array_record_from_proto, proto.ArrayRecord),
    "config": (serde.config_record_from_proto, proto.ConfigRecord),
    "metric": (serde.metric_record_from_proto, proto.MetricRecord),
}
"""How records travel that are not tensors of this process: as Flower sends them."""


class Frames(NamedTuple):
    """Messages as bytes."""

    head: bytes
    """What they are, as JSON: of each its metadata, its error, and which of the bodies its records are."""
    bodies: list[list[Any]]
    """The records, each as the buffers that make it up, so that nothing is copied before it is sent."""


def to_frames(messages: Sequence[Message]) -> Frames:
    """Messages as bytes."""
    known: dict[int, int] = {}
    kinds: list[str] = []
    bodies: list[list[Any]] = []
    rows = []
    for message in messages:
        content: list[tuple[str, int]] = []
        for key, record in message.content.items() if message.has_content() else ():
            if id(record) not in known:
                known[id(record)] = len(bodies)
                kind, body = _written(record)
                kinds.append(kind)
                bodies.append(body)
            content.append((key, known[id(record)]))
        error = (message.error.code, message.error.reason) if message.has_error() else None
        rows.append((message.metadata.__dict__, error, content))
    return Frames(json.dumps([kinds, rows]).encode(), bodies)


def from_frames(head: bytes | bytearray, bodies: Sequence[Any], start: int = 0, stop: int | None = None) -> list[Message]:
    """The messages from `start` to `stop`; bodies are single buffers, which tensors share if they can be written to."""
    kinds, rows = json.loads(head)
    records = [_read(kind, body) for kind, body in zip(kinds, bodies, strict=True)]
    messages = []
    for about, error, content in rows[start:stop]:
        metadata = Metadata.__new__(Metadata)
        metadata.__dict__.update(about)
        inside = None if error else RecordDict({key: records[number] for key, number in content})
        messages.append(make_message(metadata=metadata, content=inside, error=Error(*error) if error else None))
    return messages


def _written(record: Any) -> tuple[str, list[Any]]:
    """(kind, buffers) of a record."""
    if not isinstance(record, ArrayRecord):
        if isinstance(record, ConfigRecord):
            return "config", [serde.config_record_to_proto(record).SerializeToString()]
        return "metric", [serde.metric_record_to_proto(record).SerializeToString()]
    tensors = {name: array.tensor.contiguous() for name, array in record.items() if isinstance(array, TensorArray)}
    if len(tensors) < len(record):
        return "array", [serde.array_record_to_proto(record).SerializeToString()]
    table = json.dumps([(name, str(value.dtype)[6:], tuple(value.shape)) for name, value in tensors.items()]).encode()
    parts: list[Any] = [len(table).to_bytes(8, "little"), table, bytes(_padding(8 + len(table)))]
    for value in tensors.values():
        parts += [value.reshape(-1).view(torch.uint8).numpy().data, bytes(_padding(value.nbytes))]
    return "tensors", parts


def _read(kind: str, body: Any) -> Any:
    """A record over a buffer that nobody else writes to; a buffer that cannot be written to is copied."""
    view = memoryview(body)
    if kind != "tensors":
        from_proto, message = KINDS[kind]
        return from_proto(message.FromString(bytes(view)))
    data = torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8)
    start = 8 + int.from_bytes(view[:8], "little")
    tensors = {}
    for name, dtype, shape in json.loads(bytes(view[8:start])):
        start += _padding(start)
        value = getattr(torch, dtype)
        length = prod(shape) * value.itemsize
        tensors[name] = data[start : start + length].view(value).view(shape)
        start += length
    return to_record(tensors)


def _padding(size: int) -> int:
    return -size % ALIGNED
