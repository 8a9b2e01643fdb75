"""The stages of encrypted aggregation one by one, on updates of ten entries: what each side takes, and what it works out."""

import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_app.core.wire import to_record, to_tensors
from fl_app.engines.inline import InlineGrid
from helpers.replies import SHAPES, make, tensors
from strategies.ckks import FLOOD, CipherError, Key, Sum
from strategies.encrypted import OPENERS, RECORD, Encrypted, encrypted_mod
from strategies.hidden import CannotHide

WAVES = {name: torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape).cos() for name, shape in SHAPES.items()}
FLAT = torch.cat([value.reshape(-1) for value in WAVES.values()]).double()


@pytest.fixture(scope="module")
def key():
    return Key.make()


class Clients:
    """A grid of clients with the mod, whose updates are WAVES times client + 1; `given` is what the app behind it was sent."""

    def __init__(self, keys, number=4, cannot_open=(), more=0):
        self.given, self.opened, self.number, self.more = [], [], number, more
        app = ClientApp(mods=[self._watched, encrypted_mod(lambda context: keys[context.node_config["partition-id"]])])
        app.train()(self._train)
        app.train("other")(self._train)
        app.evaluate()(lambda message, context: Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message))
        self.grid, self.cannot_open = InlineGrid(app, len(keys), {}), cannot_open

    def _watched(self, message, context, call_next):
        if message.content.get(RECORD, {}).get("stage") == "open":
            self.opened.append(context.node_id)
            if context.node_id in self.cannot_open:
                raise RuntimeError("away")
        return call_next(message, context)

    def _train(self, message, context):
        self.given.append(dict(message.content))
        client = context.node_config["partition-id"]
        update = {name: value * (1 + client) for name, value in reversed(WAVES.items())}  # in another order than asked
        metrics = MetricRecord({"num-examples": self.number + self.more * client})
        return Message(RecordDict({"a": to_record(update), "m": metrics}), reply_to=message)

    def ask(self, record, node=1, kind="train", **more):
        content = {"arrays": to_record(tensors(0)), **more}
        if record is not None:
            content[RECORD] = ConfigRecord(record)
        return next(iter(self.grid.send_and_receive([Message(RecordDict(content), node, kind)])))


def seal(most=8, clients=5):
    return {"stage": "seal", "most-examples": most, "clients": clients}


@pytest.mark.parametrize("kind", ["train", "train.other"])
@pytest.mark.parametrize(("number", "most", "clients"), [(4, 8, 5), (4, 4, 3), (1, 1, 3), (1, 2, 4)])
def test_a_client_seals_its_share_of_the_mean(key, number, most, clients, kind):
    them = Clients([key, key], number)
    told = them.ask(seal(most, clients), node=2, kind=kind).content[RECORD]
    assert (told["num-examples"], told["key"]) == (number, key.name)
    found = key.open(told["sealed"], 10)
    assert (found - 2 * FLAT * number / (most * clients)).abs().max() < 8 * FLOOD, "in double precision"
    assert them.given[0].keys() == {"arrays"}, "the app behind it is asked as if nothing were hidden"


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (seal(most=3), "must say how many"),
        (seal(most=4.0), "must say how many"),
        (seal(most=True), "must say how many"),
        (seal(clients=5.0), "must say how many"),
        (seal(clients=True), "must say how many"),
        (seal(clients=2), "a sum of 2 clients hides none"),
        (None, "asks for a plain update"),
    ],
)
def test_a_request_that_does_not_hide_is_refused(key, record, why):
    assert why in Clients([key]).ask(record).error.reason


def test_a_client_without_examples_seals_nothing(key):
    assert "must say how many" in Clients([key], number=0).ask(seal()).error.reason


def test_other_messages_pass_as_they_are(key):
    reply = Clients([key]).ask(None, kind="evaluate")
    assert reply.content["metrics"]["loss"] == 1.0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"key": "other"}, "another encryption key"),
        ({"sealed": b"one"}, "brings no ciphertexts"),
        ({"sealed": ["text"]}, "brings no ciphertexts"),
        ({"entries": 0}, "does not say how many entries"),
        ({"entries": 10.0}, "does not say how many entries"),
        ({"entries": 10**6}, "brings 1 ciphertexts, not the 245"),
        ({"sealed": [b"junk"]}, "not a ciphertext"),
    ],
)
def test_what_opens_no_sum_is_refused_and_costs_the_opening(key, change, why):
    them = Clients([key])
    told = them.ask(seal()).content[RECORD]
    ask = {"stage": "open", "sealed": told["sealed"], "entries": 10, "key": key.name}
    assert why in them.ask({**ask, **change}).error.reason
    assert "has opened that" in them.ask(ask).error.reason


@pytest.mark.parametrize("entries", [1, 10])
def test_a_client_opens_as_many_entries_as_are_asked_for_once(key, entries):
    them = Clients([key])
    told = them.ask(seal(8, 4)).content[RECORD]
    ask = {"stage": "open", "sealed": told["sealed"], "entries": entries, "key": key.name}
    found = to_tensors(them.ask(ask).content["arrays"])
    torch.testing.assert_close(found["sum"], FLAT[:entries] / 8, rtol=0, atol=1e-7)
    assert "has opened that" in them.ask(ask).error.reason
    them.ask(seal())
    assert them.ask(ask).has_content(), "each update allows one opening"


def requests_of(grid, clients):
    plain = make(None, clients=clients)[0]
    plain.roster.client_of = {node: node - 1 for node in grid.get_node_ids()}
    messages = plain.configure_train(1, to_record(tensors(0)), ConfigRecord(), grid)
    return plain, {one.metadata.dst_node_id: one for one in messages}


@pytest.mark.parametrize("strange", [None, 1, 4])
def test_the_server_shows_the_mean_of_those_who_sealed(key, strange):
    """Each with its own number of examples; one with another key has an error in its place."""
    keys = [key] * 5
    if strange is not None:
        keys[strange] = Key.make()
    them = Clients(keys, more=1)
    plain, requests = requests_of(them.grid, 5)
    replies = Encrypted(plain, max_examples=8).exchange(1, requests, them.grid)
    stayed = [client for client in range(5) if client != strange]
    good, failed = replies[: len(stayed)], replies[len(stayed) :]
    left = [] if strange is None else [strange]
    assert [reply.metadata.src_node_id for reply in replies] == [1 + client for client in stayed + left]
    factor = sum((4 + client) * (1 + client) for client in stayed) / sum(4 + client for client in stayed)
    for client, reply in zip(stayed, good, strict=True):
        assert dict(reply.content["metrics"]) == {"num-examples": 4 + client}
        for name, value in to_tensors(reply.content["arrays"]).items():
            torch.testing.assert_close(value, factor * WAVES[name], rtol=1e-5, atol=1e-5)
    for reply in failed:
        assert "another encryption key than most" in reply.error.reason


@pytest.mark.parametrize(("server_round", "asked"), [(1, [2, 3, 4]), (4, [1, 2, 3]), (7, [4, 1, 2])])
def test_the_work_of_opening_goes_around_and_three_are_tried(key, server_round, asked):
    them = Clients([key] * 4, cannot_open=range(5))
    plain, requests = requests_of(them.grid, 4)
    assert Encrypted(plain, max_examples=8).exchange(server_round, requests, them.grid) == []
    assert them.opened == asked
    assert len(asked) == OPENERS
    helping = Clients([key] * 4, cannot_open=asked[:1])
    assert len(Encrypted(plain, max_examples=8).exchange(server_round, requests_of(helping.grid, 4)[1], helping.grid)) == 4
    assert helping.opened == asked[:2]


@pytest.mark.parametrize(("right", "shown"), [(2, 0), (3, 3)])
def test_a_sum_of_fewer_than_three_is_not_opened(key, caplog, right, shown):
    them = Clients([key] * right + [Key.make() for _ in range(2)])
    plain, requests = requests_of(them.grid, right + 2)
    replies = Encrypted(plain, max_examples=8).exchange(1, requests, them.grid)
    assert [reply.has_error() for reply in replies] == [False] * shown + [True] * 2
    assert bool(them.opened) == bool(shown)
    assert ("2 clients sent ciphertexts, too few to open their sum" in caplog.text) != bool(shown)


@pytest.fixture
def server():
    return Encrypted(make(None)[0], max_examples=8)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"num-examples": 1}, None),
        ({"num-examples": 8}, None),
        ({"num-examples": 9}, "not a whole number from 1 to 8"),
        ({"num-examples": 0}, "not a whole number from 1 to 8"),
        ({"num-examples": True}, "not a whole number from 1 to 8"),
        ({"sealed": b"one"}, "brings no ciphertexts"),
        ({"key": "other"}, "another encryption key"),
        ({"key": None}, "another encryption key"),
    ],
)
def test_what_the_server_adds(server, key, change, why):
    them = Clients([key])
    reply = them.ask(seal())
    told = {**reply.content[RECORD], **change}
    reply.content[RECORD] = ConfigRecord({name: value for name, value in told.items() if value is not None})
    total = Sum(10)
    if why is None:
        assert server._add(total, reply, key.name) == told["num-examples"]
        assert len(total.sealed()) == 1
    else:
        with pytest.raises(CannotHide, match=why):
            server._add(total, reply, key.name)
        assert total.sealed() == []


def test_a_client_that_does_not_answer_or_fails_is_named(server, key):
    with pytest.raises(CannotHide, match="did not answer"):
        server._add(Sum(10), None, key.name)
    with pytest.raises(CannotHide, match="hides none"):
        server._add(Sum(10), Clients([key]).ask(seal(clients=1)), key.name)
    with pytest.raises(CannotHide, match="brings no ciphertexts"):
        server._add(Sum(10), Clients([key]).ask(None, kind="evaluate"), key.name)


def test_a_client_whose_key_is_missing_refuses():
    def none(context):
        raise CipherError("there is no key")

    app = ClientApp(mods=[encrypted_mod(none)])
    app.train()(lambda message, context: message)
    message = Message(RecordDict({RECORD: ConfigRecord(seal())}), 1, "train")
    (reply,) = InlineGrid(app, 1, {}).send_and_receive([message])
    assert reply.error.reason == "encrypted_mod: there is no key"
