"""Tensors on the wire: exact both ways, and hostile bytes are refused before they cost anything."""

import contextlib
import io
import pickle

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.core.wire import TensorArray, WireError, to_record, to_tensor, to_tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)], ids=str)
def test_tensors_survive_flowers_serialisation(dtype, shape, rng):
    tensor = (torch.rand(shape, generator=rng) * 10).to(dtype)
    record = to_record({"a": tensor})
    assert to_tensors(record)["a"].data_ptr() == tensor.data_ptr()  # in one process nothing is copied
    arrived = ArrayRecord({"a": Array(record["a"].dtype, record["a"].shape, record["a"].stype, record["a"].data)})
    assert torch.equal(to_tensors(arrived)["a"], tensor)
    assert to_tensors(arrived)["a"].dtype == dtype
    np.testing.assert_array_equal(record["a"].numpy(), tensor.numpy())  # as any other Flower app reads it


def test_pickled_by_ray_it_is_an_ordinary_array():
    context = Context(1, 1, {}, RecordDict({"memory": to_record({"a": torch.arange(4.0)})}), {})
    state = pickle.loads(pickle.dumps(context)).state
    assert type(state["memory"]["a"]) is Array
    assert torch.equal(to_tensors(state["memory"])["a"], torch.arange(4.0))


def test_sent_over_grpc_it_is_an_ordinary_array():
    record = to_record({"a": torch.arange(4.0)})
    children = {key: child for array in record.values() for key, child in array.slice_array()}
    inflated = Array.inflate(record["a"].deflate(), children=children)
    assert torch.equal(to_tensor("a", inflated), torch.arange(4.0))


def npy(array, **header):
    stream = io.BytesIO()
    np.save(stream, array)
    data = stream.getvalue()
    for old, new in header.items():
        data = data.replace(old.encode(), new)
    return data


def array_of(data):
    return Array("float32", (2, 2), "numpy.ndarray", data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        npy(np.zeros((2, 2), np.float32))[:-1],
        npy(np.zeros((2, 2), np.float32)) + b"x",
        npy(np.zeros((2, 2), np.float32)).replace(b"(2, 2)", b"(9**9)"),
        npy(np.zeros((2, 2), np.float32)).replace(b"(2, 2), }", b"(99999999, 99999999), }"),
        npy(np.zeros((2, 2), np.float32)).replace(b"(2, 2)", b"(-2,-2)"),
        npy(np.zeros(4, "S4")),
        npy(np.zeros(4, ">f4")),
        npy(np.zeros(4, [("a", "f4")])),
        npy(np.asfortranarray(np.zeros((2, 3), np.float32))),
        npy(np.zeros(4, np.float32)).replace(b"'<f4'", b"'|O8'"),
        pickle.dumps([1, 2, 3]),
    ],
)
def test_hostile_bytes_are_refused(data):
    with pytest.raises(WireError):
        to_tensor("a", array_of(data))


def test_another_serialisation_is_refused():
    with pytest.raises(WireError, match=r"pickle"):
        to_tensor("a", Array("float32", (1,), "pickle", b"x"))


@settings(max_examples=300)
@given(st.binary(max_size=200), st.integers(0, 127), st.binary(max_size=12))
def test_fuzzed_bytes_are_a_tensor_or_a_wire_error(noise, place, patch):
    good = npy(np.arange(6, dtype=np.float32).reshape(2, 3))
    for data in (noise, good[:place] + patch + good[place + len(patch) :], good[: len(good) - place]):
        with contextlib.suppress(WireError):
            assert isinstance(to_tensor("a", array_of(data)), torch.Tensor)


def test_a_tensor_array_is_what_flower_expects():
    assert isinstance(TensorArray(torch.ones(2)), Array)
