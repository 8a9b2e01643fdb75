"""Capture files: what goes in comes out, and a bad file is named and skipped, whatever is in it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from fl_app.core.local import LocalRule
from fl_app.core.observation import Knowledge
from fl_app.store.captures import CaptureError, Captures
from helpers.captures import equal, observation


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
