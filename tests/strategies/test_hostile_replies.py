"""Hundreds of seeded hostile replies against the strategies and the hook: the weights are those of the honest replies alone."""

import logging
import random
import struct
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fl_app.core.local import LocalRule
from fl_app.core.wire import to_record, to_tensors
from fl_app.engines.inline import InlineGrid
from fl_app.store.captures import Captures
from helpers.engines import same
from helpers.replies import SHAPES, app_of, good, tensors
from strategies import Curious, FedDelta, FedSGD, optimizers

CLIENTS, HOSTILE, ROUNDS = 4, 2, 320
RULES = {
    FedSGD: LocalRule(batch_size=8),
    FedDelta: LocalRule(kind="delta", batch_size=4, steps=2, lr=0.1),
}
DTYPES = ["<f2", "<f8", "<i4", "<i8", "<u2", "|u1", "|b1", ">f4", "<c8", "|O", "<U7", "|S4", "<M8[s]", "|V8", "<f4"]
NAMES = ["", "a", "A", "a\x00", "b.weight", "../../etc/passwd", "a" * 10_000, "ä\n", "%s%n", "\x1b[2Jb"]
SIDES = [0, 1, 2, 3, 4, 7, 2**31 - 1, 2**31, 10**11, 999_999_999_999, -1, 10**30]
COUNTS = [0, -1, -(2**63), 2**63 - 1, 9, 1_000_000_000, 0.5, 8.0, float("nan"), float("inf"), [8], [], [1] * 10_000, [0.5, 8.0]]


def npy(shape, descr="<f4", body=b"", order="False"):
    """An .npy file that says what it likes."""
    sides = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({sides}), }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


def array(data, dtype="float32", shape=(3, 2), stype="numpy.ndarray"):
    return Array(dtype, tuple(shape), stype, data)


class Fuzzer:
    """One hostile reply after the other, each by the seed; `kind` says what the last one was."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.kinds = [name.removeprefix("make_") for name in dir(self) if name.startswith("make_")]
        self.kind = ""

    def reply(self, request):
        self.kind = self.draw.choice(self.kinds)
        return getattr(self, f"make_{self.kind}")(request)

    def content(self, request, arrays=None, metrics=None, **records):
        honest = good(1)
        content = {"arrays": honest[0] if arrays is None else arrays, "metrics": honest[1] if metrics is None else metrics}
        return Message(RecordDict({**content, **records}), reply_to=request)

    def arrays(self, **changed):
        """The arrays of an honest reply as bytes, with some in place of others."""
        record = {name: array(value.data, shape=SHAPES[name]) for name, value in to_record(tensors(1)).items()}
        return ArrayRecord({name: value for name, value in {**record, **changed}.items() if value is not None})

    def shape(self, sides=SIDES, most=6):
        return [self.draw.choice(sides) for _ in range(self.draw.randrange(most))]

    def make_names(self, request):
        wrong = {self.draw.choice(NAMES[:1] + NAMES[2:]): array(npy((1,), body=bytes(4)))}
        gone = {"a": None} if self.draw.random() < 0.5 else {}
        return self.content(request, self.arrays(**wrong, **gone))

    def make_missing(self, request):
        return self.content(request, self.draw.choice([self.arrays(a=None), ArrayRecord(), self.arrays(a=None, b=None)]))

    def make_shapes(self, request):
        shape = [self.draw.randrange(4) for _ in range(self.draw.randrange(5))]
        shape = shape if shape != [3, 2] else [2, 3]
        return self.content(request, self.arrays(a=array(npy(shape, body=bytes(4 * int(np.prod(shape)))))))

    def make_empty_shapes(self, request):
        """No bytes, as declared: a side is zero, the others are anything."""
        shape = [0, *(self.draw.choice([0, 1, 5, 2**31, 10**11]) for _ in range(self.draw.randrange(2)))]
        self.draw.shuffle(shape)
        return self.content(request, self.arrays(a=array(npy(shape), shape=(3, 2))))

    def make_dtypes(self, request):
        descr = self.draw.choice(DTYPES[:-1])
        return self.content(request, self.arrays(a=array(npy((3, 2), descr, bytes(self.draw.choice([6, 12, 24, 48, 96]))))))

    def make_huge(self, request):
        """Gigabytes to exabytes by their header and their record, a few bytes in truth."""
        shape = [self.draw.choice([2**31, 10**11, 999_999_999_999]) for _ in range(self.draw.randrange(1, 4))]
        data = npy(shape, self.draw.choice(["<f4", "<f8"]), bytes(self.draw.randrange(200)))
        return self.content(request, self.arrays(a=array(data, shape=shape)))

    def make_short(self, request):
        data = npy((3, 2), body=bytes(24))
        cut = self.draw.choice([data[: self.draw.randrange(len(data))], data + bytes(self.draw.randrange(1, 99))])
        return self.content(request, self.arrays(a=array(cut)))

    def make_header(self, request):
        data = npy(self.shape(), self.draw.choice(DTYPES), bytes(24), self.draw.choice(["True", "False", "__import__('os')"]))
        spot = self.draw.randrange(len(data))
        noise = self.draw.randbytes(self.draw.randrange(1, 9))
        data = data[:spot] + noise + data[spot + len(noise) :]
        return self.content(request, self.arrays(b=array(data, shape=(4,)), a=array(npy((3, 2), body=bytes(20)))))

    def make_noise(self, request):
        return self.content(request, self.arrays(a=array(self.draw.randbytes(self.draw.randrange(400)))))

    def make_serialisation(self, request):
        honest = npy((3, 2), body=bytes(24))
        stype = self.draw.choice(["pickle", "", "torch.save", "numpy.ndarray ", "x" * 10_000])
        return self.content(request, self.arrays(a=array(honest, stype=stype)))

    def make_not_finite(self, request):
        value = self.draw.choice([float("nan"), float("inf"), float("-inf")])
        update = tensors(1)
        update[self.draw.choice("ab")].view(-1)[self.draw.randrange(4)] = value
        return self.content(request, to_record(update))

    def make_counts(self, request):
        count = self.draw.choice(COUNTS)
        metrics = {"num-examples": count} if self.draw.random() < 0.8 else {"examples": 8, "loss": 0.1}
        return self.content(request, metrics=MetricRecord(metrics))

    def make_records(self, request):
        """Wrong kinds of records, too many, none."""
        arrays, metrics = good(1)
        content = self.draw.choice(
            [
                {},
                {"arrays": arrays},
                {"metrics": metrics},
                {"arrays": metrics, "metrics": metrics},
                {"arrays": arrays, "metrics": arrays},
                {"arrays": arrays, "metrics": metrics, "more": arrays},
                {"arrays": arrays, "metrics": metrics, "more": metrics},
                {"arrays": ConfigRecord({"a": b"\x80\x04."}), "metrics": ConfigRecord({"num-examples": 8})},
                {f"metrics{i}": metrics for i in range(500)},
            ]
        )
        return Message(RecordDict(content), reply_to=request)

    def make_error(self, request):
        reason = self.draw.choice(["", "no data", "%s %d", "x" * 100, "\u202e"])
        return Message(Error(self.draw.randrange(-5, 300), reason), reply_to=request)

    def make_second(self, request):
        """A second reply of an honest client, who has answered already."""
        return from_node(good(self.draw.choice([5, -9, 1e30])), 1)

    def make_stranger(self, request):
        return from_node(good(1), self.draw.choice([0, 77, -5, 2**63, HOSTILE + 1 + 2**32]))


def from_node(answer, node):
    """A reply that a node which was not asked this sends of itself."""
    arrays, metrics = answer
    metadata = SimpleNamespace(src_node_id=node, message_id="x", reply_to_message_id="y")
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    return SimpleNamespace(content=content, metadata=metadata, has_error=lambda: False)


def honest(client, server_round):
    return good((client + 1) * 0.01 * (-1) ** server_round, 8 - client)


def rounds_of(strategy, watched, fuzzer=None, rounds=ROUNDS):
    """The weights after rounds of honest replies, with a hostile one among them in each if there is a fuzzer."""
    grid = InlineGrid(app_of(honest), CLIENTS, {})
    weights, found = to_record(tensors(0.5)), []
    for server_round in range(1, rounds + 1):
        requests = list(watched.configure_train(server_round, weights, ConfigRecord(), grid))
        replies = [reply for reply in grid.send_and_receive(requests) if reply.metadata.src_node_id != HOSTILE + 1]
        if fuzzer is not None:
            reply = fuzzer.reply(requests[HOSTILE])
            replies.insert(len(replies) if fuzzer.kind == "second" else fuzzer.draw.randrange(4), reply)
        weights = watched.aggregate_train(server_round, replies)[0] or weights
        found.append((fuzzer.kind if fuzzer else "", dict(strategy.last_counts)))
    return to_tensors(weights), found


def strategy_of(kind):
    return kind(RULES[kind], optimizers.build("adam(lr=0.01)"), clients=CLIENTS, weighting="examples")


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("hook", [False, True], ids=["plain", "curious"])
def test_hostile_replies_change_nothing_and_are_named(kind, hook, tmp_path, caplog):
    alone, _ = rounds_of(plain := strategy_of(kind), plain)
    strategy, fuzzer = strategy_of(kind), Fuzzer(f"{kind.__name__} {hook}")
    captures = Captures(tmp_path)
    watched = Curious(strategy, captures, RULES[kind]) if hook else strategy
    caplog.set_level(logging.WARNING)
    weights, found = rounds_of(strategy, watched, fuzzer)
    assert same(weights, alone)
    assert {made for made, _ in found} == set(fuzzer.kinds)  # each kind was tried
    for made, counts in found:
        assert counts == {"accepted": 3, "rejected": 1, "applied": 1}, made
    rejected = [message for message in caplog.messages if "is rejected" in message]
    assert len(rejected) == ROUNDS
    assert not [message for message in caplog.messages if "\n" in message]
    if hook:
        assert len(captures.paths()) == ROUNDS * 3
        seen, damaged = captures.read_all()
        assert {one.client for one in seen} == set(range(CLIENTS)) - {HOSTILE}
        assert damaged == []


def test_what_is_declared_is_not_allocated():
    """Up to 10^36 bytes by their headers, for the strategy and for the hook, which decode each reply."""
    strategy, fuzzer = strategy_of(FedSGD), Fuzzer(3)
    fuzzer.kinds = ["huge", "empty_shapes", "short"]
    rounds_of(strategy, strategy, fuzzer, 5)
    tracemalloc.start()
    rounds_of(strategy, strategy, fuzzer, 60)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_a_round_of_hostile_replies_alone_leaves_the_weights(kind):
    strategy, fuzzer = strategy_of(kind), Fuzzer(1)
    fuzzer.kinds.remove("second")  # an honest reply, where there is no first one
    grid = InlineGrid(app_of(honest), CLIENTS, {})
    for server_round in range(1, 41):
        requests = list(strategy.configure_train(server_round, to_record(tensors(0.5)), ConfigRecord(), grid))
        replies = [fuzzer.reply(request) for request in requests]
        assert strategy.aggregate_train(server_round, replies)[0] is None
        assert strategy.last_counts == {"accepted": 0, "rejected": CLIENTS, "applied": 0}


def test_the_fuzzer_would_notice_a_reply_that_gets_through():
    """What it calls honest is accepted: the replies above are refused for what is wrong with them."""
    strategy = strategy_of(FedSGD)
    fuzzer = Fuzzer(0)
    fuzzer.kinds, fuzzer.make_good = ["good"], lambda request: fuzzer.content(request, fuzzer.arrays())
    assert rounds_of(strategy, strategy, fuzzer, 1)[1] == [("good", {"accepted": 4, "rejected": 0, "applied": 1})]


def one_worse(make):
    """What is logged of a round with one reply by `make`, which must not count."""
    strategy, fuzzer = strategy_of(FedSGD), Fuzzer(0)
    fuzzer.kinds, fuzzer.make_worse = ["worse"], lambda request: make(fuzzer, request)
    assert rounds_of(strategy, strategy, fuzzer, 1)[1] == [("worse", {"accepted": 3, "rejected": 1, "applied": 1})]


WORSE = {
    "nothing in sides too large": lambda f, r: f.content(r, f.arrays(a=array(npy((0, 999_999_999_999, 999_999_999_999))))),
    "an error of two lines": lambda f, r: Message(Error(0, "one\nround 1: all is well"), reply_to=r),
    "an error for the terminal": lambda f, r: Message(Error(0, "\x1b[2J\x1b]0;owned\x07"), reply_to=r),
    "an endless error": lambda f, r: Message(Error(0, "x" * 10**6), reply_to=r),
    "a serialisation of two lines": lambda f, r: f.content(r, f.arrays(a=array(b"", stype="one\ntwo"))),
    "a list of examples": lambda f, r: f.content(r, metrics=MetricRecord({"num-examples": [1] * 10**5})),
}


@pytest.mark.parametrize("worse", WORSE)
def test_a_reply_cannot_write_the_servers_log(worse, caplog):
    one_worse(WORSE[worse])
    (message,) = (message for message in caplog.messages if "is rejected" in message)
    assert message.isprintable()
    assert len(message) < 700


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(Error(0, "no\nthanks"), "no thanks", id="error"),
        pytest.param({"client": 1, "clients": 99}, "has 99 nodes", id="number"),
        pytest.param({"client": 1, "clients": "4\n"}, r"has '4\n' nodes", id="text"),
        pytest.param({"client": "0\n" * 99}, r"calls itself client '0\n0\n", id="name"),
    ],
)
def test_a_node_that_joins_with_nonsense_is_left_out(answer, said, caplog):
    grid = InlineGrid(app_of(honest), CLIENTS, {})
    strategy = strategy_of(FedSGD)
    assert len(strategy.roster.connected(grid)) == CLIENTS
    usual, grid.contexts[99] = grid._answer, grid.contexts[1]

    def lying(message):
        if message.metadata.dst_node_id != 99:
            return usual(message)
        message.metadata.__dict__["_message_id"] = "99"
        content = answer if isinstance(answer, Error) else RecordDict({"identity": ConfigRecord(answer)})
        return Message(content, reply_to=message)

    grid._answer = lying
    assert list(strategy.roster.connected(grid).values()) == [1, 2, 3, 4]
    assert len(strategy.configure_train(2, to_record(tensors(0)), ConfigRecord(), grid)) == CLIENTS
    (message,) = caplog.messages
    assert message.startswith("node 99 is ignored")
    assert said in message
    assert message.isprintable()
