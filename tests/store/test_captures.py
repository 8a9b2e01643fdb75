"""Capture files: what goes in comes out, and a bad file is named and skipped, whatever is in it."""

import json
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fl_app.core.local import LocalRule
from fl_app.core.observation import Knowledge, Observation
from fl_app.store import sealed
from fl_app.store.capture_format import encode
from fl_app.store.captures import CaptureError, Captures

SHAPES = {"b.weight": (3, 2), "a": (4,), "scale": ()}


def observation(rng, dtype=torch.float32, shapes=SHAPES, **settings):
    def draw():
        return {name: torch.randn(shape, generator=rng, dtype=dtype) for name, shape in shapes.items()}

    plain = {"rule": LocalRule(), "num_examples": 8, "server_round": 1, "node_id": 2**64 - 1, "client": 3}
    return Observation(**{"params": draw(), "update": draw(), **plain, **settings})


def equal(a, b):
    def same(x, y):
        return list(x) == list(y) and all(torch.equal(x[n], y[n]) and x[n].dtype == y[n].dtype for n in x)

    facts = ("rule", "num_examples", "server_round", "node_id", "client", "visibility")
    labels = (a.knowledge.labels, b.knowledge.labels)
    return (
        same(a.params, b.params)
        and same(a.update, b.update)
        and all(getattr(a, key) == getattr(b, key) for key in facts)
        and (labels[0] is labels[1] is None or torch.equal(*labels))
        and a.knowledge.defense == b.knowledge.defense
        and same(a.knowledge.statistics, b.knowledge.statistics)
    )


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text('abc./_é"', min_size=1, max_size=8), st.lists(st.integers(0, 4), max_size=4), max_size=5),
    st.lists(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), min_size=5, max_size=5),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.booleans(),
    st.floats(1e-300, 1e300),
)
def test_what_is_written_is_read(tmp_path_factory, shapes, dtypes, defense, granted, lr):
    rng = torch.Generator().manual_seed(1)
    types = dict(zip(shapes, dtypes, strict=False))
    params, update = ({n: torch.randn(s, generator=rng).to(types[n]) for n, s in shapes.items()} for _ in range(2))
    statistics = {"norm.1": torch.rand(2, 5, generator=rng)} if granted else {}
    labels = torch.arange(6) if granted else None
    seen = replace(
        observation(rng, params=params, num_examples=6, rule=LocalRule(kind="delta", batch_size=3, steps=2, lr=lr)),
        update=update,
        knowledge=Knowledge(labels=labels, defense=defense, statistics=statistics),
    )
    captures = Captures(tmp_path_factory.mktemp("captures"))
    assert equal(captures.read(captures.write(seen)), seen)


def test_other_programs_can_read_the_files(tmp_path, rng):
    seen = observation(rng)
    path = Captures(tmp_path).write(seen)
    weights, update = load_file(path.with_name("model.safetensors")), load_file(path)
    assert all(torch.equal(weights[name], value) for name, value in seen.params.items())
    assert all(torch.equal(update[f"update/{name}"], value) for name, value in seen.update.items())
    assert path.name == "client-03.safetensors"
    assert path.parent.name == "round-0001"


def test_rounds_and_clients_are_found_in_order(tmp_path, rng):
    captures = Captures(tmp_path / "captures")
    assert (captures.rounds(), captures.paths(), captures.read_all()) == ([], [], ([], []))
    for server_round in (10000, 2):
        params = observation(rng).params
        for client in (101, 0):
            captures.write(observation(rng, params=params, server_round=server_round, client=client))
    captures.write(observation(rng, server_round=3, client=-1, visibility="aggregate"))
    (tmp_path / "captures" / "round-02").mkdir()
    (tmp_path / "captures" / "round-0002" / "client-000.safetensors").touch()
    (tmp_path / "captures" / "round-0002" / ".client-07.safetensors.part").touch()
    assert captures.rounds() == [2, 3, 10000]
    found = [(seen.server_round, seen.client) for seen in captures.read_all()[0]]
    assert found == [(2, 0), (2, 101), (3, -1), (10000, 0), (10000, 101)]
    assert [path.name for path in captures.paths({2, 3}, {-1, 0})] == ["client-00.safetensors", "aggregate.safetensors"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_examples": 0}, "0 examples"),
        ({"server_round": 0}, "round 0"),
        ({"client": -1}, "visibility"),
        ({"visibility": "aggregate"}, "visibility"),
        ({"update": {"a": torch.zeros(4)}}, "other names"),
        ({"update": {"b.weight": torch.zeros(2, 3), "a": torch.zeros(4), "scale": torch.zeros(())}}, r"\(2, 3\)"),
        ({"update": {"b.weight": torch.zeros(3, 2), "a": torch.full((4,), torch.nan), "scale": torch.zeros(())}}, "finite"),
        ({"knowledge": Knowledge(labels=torch.zeros(3, dtype=torch.int64))}, "labels"),
        ({"knowledge": Knowledge(statistics={"x": torch.zeros(3, 4)})}, "statistics"),
        ({"knowledge": Knowledge(chosen=("everything",))}, "the server chose"),
        ({"sent": {1: {"a": torch.zeros(4)}}}, "no aggregate"),
        ({"sent": {1: {"a": torch.zeros(5)}}, "client": -1, "visibility": "aggregate"}, "client 1 was sent do not fit: a"),
    ],
)
def test_what_could_not_be_read_is_not_written(tmp_path, rng, change, reason):
    captures = Captures(tmp_path)
    with pytest.raises(CaptureError, match=reason):
        captures.write(replace(observation(rng), **change))
    assert not captures.paths()


def test_weights_are_kept_once_for_a_round_and_beside_it_for_a_client_that_was_sent_others(tmp_path, rng):
    captures = Captures(tmp_path)
    shared = observation(rng).params
    written = [observation(rng, client=0, params=shared), observation(rng, client=1), observation(rng, client=2, params=shared)]
    for one in written:
        captures.write(one)
    names = {path.name for path in (tmp_path / "round-0001").glob("*weights*")}
    assert names == {"weights-01.safetensors"}
    seen, damaged = captures.read_all()
    assert damaged == []
    assert all(equal(a, b) for a, b in zip(written, seen, strict=True))
    assert seen[0].params is seen[2].params  # 64 targets of a large model shall not hold 64 copies
    Captures(tmp_path).write(observation(rng, client=1, params=shared))  # a resumed run that sends all the same
    seen, damaged = captures.read_all()
    assert [one.client for one in seen] == [0, 1, 2]
    assert damaged == []


def test_an_update_on_other_weights_than_those_of_its_round_is_refused(tmp_path, rng):
    captures = Captures(tmp_path)
    captures.write(observation(rng, client=0))
    Captures(tmp_path).write(observation(rng, client=1))  # another run, into the same folder
    seen, damaged = captures.read_all()
    assert [one.client for one in seen] == [1]
    assert "other weights" in damaged[0].reason


def test_a_bad_model_is_the_reason_for_its_round_alone(tmp_path, rng):
    captures = Captures(tmp_path)
    for server_round in (1, 2):
        captures.write(observation(rng, server_round=server_round))
    model = tmp_path / "round-0001" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-3])
    seen, damaged = captures.read_all()
    assert [one.server_round for one in seen] == [2]
    assert "model.safetensors: it is cut off" in damaged[0].reason


def rebuilt(tensors, notes):
    return b"".join(sealed.seal(tensors, notes)[0])


def resealed(header, data=b""):
    """A file with any header and the right checksum: what a patient forger would make."""
    text = header.replace(b"CHECKSUM", sealed.BLANK)
    digest = sealed._checksum(text, [data])
    text = text[: len(sealed.START)] + digest.encode() + text[len(sealed.START) + 64 :]
    return len(text).to_bytes(8, "little") + text + data


def test_a_rule_from_before_momentum_is_still_read(tmp_path, rng):
    captures = Captures(tmp_path)
    seen = observation(rng, rule=LocalRule(kind="delta", steps=2))
    path = captures.write(seen)
    tensors, notes = encode(seen, sealed.read(path, 10**6).notes["model"])
    named = json.loads(notes["rule"])
    assert (named.pop("local-momentum"), named.pop("local-weight-decay")) == (0.0, 0.0)
    assert named.pop("local-shuffle") is False
    path.write_bytes(rebuilt(tensors, {**notes, "rule": json.dumps(named)}))
    assert captures.read(path).rule == seen.rule
    del named["local-lr"]
    path.write_bytes(rebuilt(tensors, {**notes, "rule": json.dumps(named)}))
    with pytest.raises(CaptureError, match="does not name"):
        captures.read(path)


def hostile_files(good, seen, model, draw):
    """(kind, bytes) of files that are not what was written."""
    length = int.from_bytes(good[:8], "little")
    tensors, notes = encode(seen, model)
    for _ in range(60):
        yield "cut", good[: draw.randrange(len(good))]
    for _ in range(80):
        place, other = draw.randrange(len(good)), draw.randrange(1, 256)
        yield "bit rot", good[:place] + bytes([good[place] ^ other]) + good[place + 1 :]
    for _ in range(20):
        yield "noise", draw.randbytes(draw.randrange(400))
    for size in (0, 1, length + 1, 2**31, 2**63, 2**64 - 1):
        yield "header size", size.to_bytes(8, "little") + good[8:]
    for tail in (b"\0", b"x" * 5000):
        yield "tail", good + tail
    odd = ["", "-1", "0", "1e3", "99999999999999999999", "9" * 5000, "nan", "inf", "\u0663", "x" * 999, "True"]
    fine = {("lr", value) for value in ("0", "-1", "1e3", "99999999999999999999")} | {("examples", "0")}
    for key in notes:
        for value in odd:
            if key not in ("node_id", "thorns") and (key, value) not in fine:
                yield f"note {key}={value[:9]}", rebuilt(tensors, {**notes, key: value})
        if key != "node_id":
            yield f"no {key}", rebuilt(tensors, {name: value for name, value in notes.items() if name != key})
    yield "other program", rebuilt(tensors, {**notes, "thorns": "model"})
    bad = {
        "shape": torch.zeros(2, 3),
        "dtype": torch.zeros(3, 2, dtype=torch.float64),
        "whole": torch.zeros(3, 2, dtype=torch.int32),
        "empty": torch.zeros(0),
    }
    for kind, value in bad.items():
        yield kind, rebuilt({**tensors, "update/b.weight": value}, notes)
    yield "extra", rebuilt({**tensors, "update/z": torch.zeros(1)}, notes)
    yield "foreign tensor", rebuilt({**tensors, "z": torch.zeros(1)}, notes)
    yield "missing", rebuilt({k: v for k, v in tensors.items() if k != "update/a"}, notes)
    yield "labels", rebuilt({**tensors, "knowledge/labels": torch.zeros(3)}, notes)
    yield "knowledge", rebuilt({**tensors, "knowledge/odd": torch.zeros(3)}, notes)
    yield "sent of no aggregate", rebuilt({**tensors, "sent/3/a": torch.zeros(4)}, notes)
    yield "sent by nobody", rebuilt({**tensors, "sent/x/a": torch.zeros(4)}, notes)
    yield "chosen", rebuilt(tensors, {**notes, "chosen": "weights,everything"})
    view = bytes(4 * 6)
    text = good[8 : 8 + length]
    yield "NaN", resealed(text, b"\0\0\xc0\x7f" * ((len(good) - 8 - length) // 4))
    swaps = [(b'"F32"', other) for other in (b'"F64"', b'"X32"', b"[]")]
    swaps += [(b"[4]", other) for other in (b"[-4]", b"[true]", b"4")]
    for swap in swaps:
        yield "layout", resealed(text.replace(*swap), good[8 + length :])
    start = sealed.START + b"CHECKSUM"
    for rest in (
        b'"}}',
        b'"},"a":{}}',
        b'"},"a":' + b"[" * 100_000,
        b'"},"a":null}',
        b'"},"__metadata__":[]}',
        b'"},"__metadata__":{}}',
        b'","thorns":1}}',
        b'","thorns":"capture","version":"2"},"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}',
        b'"},"a":{"dtype":"F32","shape":[99999999999999999999999],"data_offsets":[0,4]}}',
        b'"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}',
        b'"},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        b'"},"\xff":{}}',
    ):
        yield "header", resealed(start + rest, view if b"[1]" not in rest else bytes(8))


def test_hostile_files_are_refused_by_name(tmp_path, rng):
    captures = Captures(tmp_path)
    params = observation(rng).params
    neighbour = observation(rng, params=params, client=4)
    seen = observation(rng, params=params)
    path = captures.write(seen)
    captures.write(neighbour)
    good, model = path.read_bytes(), next(iter(captures._written.values()))
    count = 0
    for kind, content in hostile_files(good, seen, model, random.Random(3)):
        path.write_bytes(content)
        found, damaged = captures.read_all()
        assert [one.client for one in found] == [4], kind
        assert [one.path for one in damaged] == [path], kind
        assert 5 < len(damaged[0].reason) < 300, kind
        with pytest.raises(CaptureError, match=r"client-03\.safetensors: "):
            captures.read(path)
        count += 1
    assert count >= 200
    path.write_bytes(good)
    assert equal(captures.read(path), seen)


def test_foreign_files_and_odd_places_are_refused(tmp_path, rng):
    captures = Captures(tmp_path)
    path = captures.write(observation(rng))
    good = path.read_bytes()
    save_file({"update/a": torch.zeros(4)}, path, metadata={"thorns": "capture", "version": "2"})
    assert "not a capture" in captures.read_all()[1][0].reason
    path.unlink()
    path.mkdir()
    assert "not a file" in captures.read_all()[1][0].reason
    path.rmdir()
    for name, reason in (("client-05.safetensors", "not what its name says"), ("aggregate.safetensors", "not what its name")):
        path.with_name(name).write_bytes(good)
        assert reason in captures.read_all()[1][0].reason
        path.with_name(name).unlink()
    with path.open("wb") as out:
        out.truncate(2**40)  # sparse: a terabyte that takes no room
    assert "more than" in captures.read_all()[1][0].reason
    path.unlink()
    for odd in (tmp_path / "x" / "client-01.safetensors", path.with_name("odd"), path):
        with pytest.raises(CaptureError, match=odd.name):
            captures.read(odd)


def test_the_header_is_versioned_json(tmp_path, rng):
    raw = Captures(tmp_path).write(observation(rng, knowledge=Knowledge(defense="none"))).read_bytes()
    notes = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    expected = {"thorns": "capture", "version": "3", "num_examples": "8", "client": "3", "defense": "none"}
    assert expected.items() <= notes.items()
    assert json.loads(notes["rule"])["update"] == "gradient"
