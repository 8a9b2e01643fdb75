"""How often a node looks for messages, and many arrays as one."""

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fl_app.core.wire import to_record
from fl_app.engines.grpc import packing
from fl_app.engines.grpc.polling import Backoff
from helpers.deploy_messages import TENSORS, damaged, equal

pytestmark = pytest.mark.usefixtures("identity")


def looks(backoff, clock, wait):
    """How many looks a wait takes, and how late the last one is."""
    begin = clock[0]
    backoff.begin()
    number = 0
    while clock[0] - begin < wait:
        clock[0] += backoff.pause()
        number += 1
    backoff.end()
    return number, clock[0] - begin - wait


@pytest.mark.parametrize("wait", [0.05, 0.5, 5.0])
def test_a_usual_wait_takes_about_ten_looks_and_little_delay(wait):
    clock = [0.0]
    backoff = Backoff(clock=lambda: clock[0])
    for _ in range(12):
        number, late = looks(backoff, clock, wait)
    assert number <= 12
    assert late <= 0.11 * wait + 0.005


def test_an_idle_node_looks_rarely_and_is_quick_again_soon():
    clock = [0.0]
    backoff = Backoff(longest=2.0, clock=lambda: clock[0])
    looks(backoff, clock, 0.5)
    looks(backoff, clock, 3600.0)
    assert backoff.pause() <= 2.0
    late = [looks(backoff, clock, 0.5)[1] for _ in range(3)]
    assert max(late) < 0.2


def test_packing_keeps_every_bit_and_the_order():
    packed = packing.pack(to_record(TENSORS))
    assert packing.is_packed(packed)
    assert not packing.is_packed(to_record(TENSORS))
    assert equal(packing.unpack(packed), TENSORS)


def test_a_packed_message_has_few_objects():
    many = {f"p{i}": torch.randn(3) for i in range(20)}
    message = Message(RecordDict({"arrays": to_record(many), "config": ConfigRecord({"x": 1})}), 5, "train")
    before = len(get_all_nested_objects(message))
    message.content = packing.pack_content(message.content, {})
    assert before > 40
    assert len(get_all_nested_objects(message)) == 6


def table(text, body=b""):
    return len(text).to_bytes(8, "little") + text + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        table(b"not json"),
        table(b"[" * 5000),
        table(b'{"a": 1}'),
        table(b'[["a", "float32", [1], "numpy.ndarray"]]'),
        table(b'[["a", "float32", [1.5], "numpy.ndarray", 4]]', b"1234"),
        table(b'[["a", "float32", [1], "numpy.ndarray", -1]]', b"1234"),
        table(b'[["a", "float32", [1], "numpy.ndarray", true]]', b"1"),
        table(b'[["a", "float32", [1], "numpy.ndarray", 5]]', b"1234"),
        table(b'[["a", "float32", [1], "numpy.ndarray", 3]]', b"1234"),
    ],
    ids=range(11),
)
def test_damaged_packing_is_a_value_error(data):
    with pytest.raises(ValueError, match="packed record"):
        packing.unpack(damaged(data))
