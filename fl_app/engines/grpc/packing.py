"""One array in place of many: Flower sends every array as two objects of its own, each a signed request to the SuperLink.

A packed record holds one array of bytes: the length of a JSON table, the table (name, dtype, shape, stype, bytes of each
array), and the arrays' own bytes one after the other, unchanged.
"""

import json
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

PACKED = "thorns.packed"
ANNOUNCEMENT = "thorns.transport"
"""The record by which a node says, in replies to messages that were not packed, that it can read packed ones."""
LENGTH_BYTES = 8


def pack(record: ArrayRecord) -> ArrayRecord:
    """All arrays of a record as one."""
    arrays = list(record.items())
    table = [[name, array.dtype, list(array.shape), array.stype, len(array.data)] for name, array in arrays]
    head = json.dumps(table).encode()
    data = b"".join([len(head).to_bytes(LENGTH_BYTES, "little"), head, *(array.data for _, array in arrays)])
    return ArrayRecord({PACKED: Array("uint8", (len(data),), PACKED, data)})


def is_packed(record: object) -> bool:
    """Whether a record came from `pack`."""
    return isinstance(record, ArrayRecord) and record.keys() == {PACKED} and record[PACKED].stype == PACKED


def unpack(record: ArrayRecord) -> ArrayRecord:
    """The arrays of a packed record; raises ValueError if it is damaged. What the arrays hold is checked by who reads them."""
    data = record[PACKED].data
    start = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    arrays: dict[str, Array] = {}
    for row in _table(data[LENGTH_BYTES:start]):
        name, dtype, shape, stype, size = row
        if not 0 <= size <= len(data) - start:
            raise ValueError("a packed record is shorter than its table says")
        arrays[name] = Array(dtype, tuple(shape), stype, data[start : start + size])
        start += size
    if start != len(data):
        raise ValueError("a packed record is longer than its table says")
    return ArrayRecord(arrays)


def _table(head: bytes) -> list[Any]:
    try:
        rows = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise ValueError("a packed record has no readable table") from error
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        raise ValueError("the table of a packed record is not one")
    return rows


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or [type(value) for value in row] != [str, str, list, str, int]:
        return False
    return all(type(side) is int for side in row[2])


Packed = dict[int, tuple[ArrayRecord, ArrayRecord]]
"""id of a record -> (the record, which keeps the id its own; the packed one)."""


def pack_content(content: RecordDict, done: Packed) -> RecordDict:
    """Content with its array records packed; `done` keeps those that several messages share."""
    packed = RecordDict()
    for key, record in content.items():
        if isinstance(record, ArrayRecord):
            if id(record) not in done:
                done[id(record)] = (record, pack(record))
            record = done[id(record)][1]
        packed[key] = record
    return packed


def unpack_message(message: Message) -> bool:
    """Unpack a message's array records in place; whether there were any."""
    packed = {key: unpack(record) for key, record in message.content.array_records.items() if is_packed(record)}
    if packed:
        message.content = RecordDict({key: packed.get(key, record) for key, record in message.content.items()})
    return bool(packed)


def announce(message: Message) -> None:
    """Say in a reply that this node can read packed messages."""
    message.content = RecordDict({**message.content, ANNOUNCEMENT: ConfigRecord({"packs": True})})


def announced(message: Message) -> bool:
    """Whether a reply says so; takes the record out of it."""
    if ANNOUNCEMENT not in message.content:
        return False
    message.content = RecordDict({key: record for key, record in message.content.items() if key != ANNOUNCEMENT})
    return True
