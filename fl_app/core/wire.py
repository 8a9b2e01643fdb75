"""Tensors as Flower records: serialised only when they leave the process, and read back without trust."""

import re
from math import prod
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fl_app.core.local import Tensors

NUMPY, DECODED = "numpy.ndarray", "_thorns_decoded"
# What np.save writes for little-endian numbers in C order. numpy's own reader of untrusted headers runs Python's tokenizer
# on them, raises a dozen kinds of errors, and allocates what they say.
HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<dtype><f[248]|<[iu][248]|\|[iu]1|\|b1)', 'fortran_order': False, "
    rb"'shape': \((?P<shape>(?:\d{1,12}(?:, \d{1,12}){0,15},?)?)\), \} *\n",
    re.DOTALL,
)


class WireError(ValueError):
    """Bytes that are not the tensor they should be."""


class TensorArray(Array):
    """A Flower Array around a tensor; its bytes are made when something asks for them.

    Inside one process nothing does, which is what makes the inline engine fast. Pickled (Ray) or sent (gRPC) it becomes
    an ordinary Array. The tensor is shared, so nobody may change it in place.
    """

    tensor: Tensor
    __qualname__ = "Array"  # the type that Flower writes into the bytes it sends

    def __init__(self, tensor: Tensor) -> None:
        dtype = str(tensor.dtype).removeprefix("torch.")
        # Not attribute by attribute: Array checks each assignment.
        self.__dict__.update(tensor=tensor.detach(), dtype=dtype, shape=tuple(tensor.shape), stype=NUMPY)

    def __getattr__(self, name: str) -> Any:
        if name != "data":
            raise AttributeError(name)
        self.__dict__["data"] = Array.from_torch_tensor(self.tensor).data
        return self.__dict__["data"]

    def __reduce__(self) -> Any:
        return Array, (self.dtype, self.shape, self.stype, self.data)


def to_record(tensors: Tensors) -> ArrayRecord:
    """Name -> tensor, as a record."""
    record = ArrayRecord()
    # Flower's own item assignment checks types at a cost that a small model's round would notice.
    record.__dict__["_data"] = {name: TensorArray(tensor) for name, tensor in tensors.items()}
    return record


def to_tensors(record: ArrayRecord) -> Tensors:
    """A record as name -> tensor; raises WireError where an array is not what it says."""
    return {name: to_tensor(name, array) for name, array in record.items()}


def decoded(record: ArrayRecord) -> Tensors:
    """As `to_tensors`, once for a record: a reply is read by the curious hook and by the strategy behind it."""
    if DECODED not in record.__dict__:
        record.__dict__[DECODED] = to_tensors(record)
    tensors: Tensors = record.__dict__[DECODED]
    return tensors


def to_tensor(name: str, array: Array) -> Tensor:
    """Decode one array; sizes are checked against the bytes that are there before anything is allocated."""
    if isinstance(array, TensorArray):
        return array.tensor
    if array.stype != NUMPY:
        raise WireError(f"{name} is serialised as {array.stype[:40]!r}, not as {NUMPY}")
    header = HEADER.match(array.data)
    if header is None:
        raise WireError(f"{name} does not start with the header of a plain array of numbers")
    dtype = np.dtype(header["dtype"].decode())
    shape = tuple(int(side) for side in header["shape"].replace(b" ", b"").split(b",") if side)
    start = header.end()
    if prod(shape) * dtype.itemsize != len(array.data) - start:
        raise WireError(f"{name} says shape {shape} of {dtype}, but brings {len(array.data) - start} bytes")
    try:
        values = np.frombuffer(array.data, dtype, offset=start).reshape(shape)
    except ValueError:  # no bytes at all can be said to have sides that are too large for an address
        raise WireError(f"{name} says shape {shape}, which no array has") from None
    return torch.from_numpy(values.copy())
