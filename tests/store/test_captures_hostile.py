"""Capture files that were damaged, forged or made by another version."""

import json
import random

import pytest
import torch
from safetensors.torch import save_file

from fl_app.core.local import LocalRule
from fl_app.core.observation import Knowledge
from fl_app.store import sealed
from fl_app.store.capture_format import encode
from fl_app.store.captures import CaptureError, Captures
from helpers.captures import equal, observation


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
