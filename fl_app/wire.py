"""Tensors as Flower records: serialised only when they leave the process, and read back without trust."""

from io import BytesIO
from math import prod
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fl_app.local import Tensors

NUMPY = "numpy.ndarray"


class WireError(ValueError):
    """Bytes that are not the tensor they should be."""


class TensorArray(Array):
    """A Flower Array around a tensor; its bytes are made when something asks for them.

    Inside one process nothing does, which is what makes the inline engine fast. Pickled (Ray) or sent (gRPC) it becomes
    an ordinary Array. The tensor is shared, so nobody may change it in place.
    """

    tensor: Tensor

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


def to_tensor(name: str, array: Array) -> Tensor:
    """Decode one array; sizes are checked against the bytes that are there before anything is allocated."""
    if isinstance(array, TensorArray):
        return array.tensor
    if array.stype != NUMPY:
        raise WireError(f"{name} is serialised as '{array.stype[:40]}', not as {NUMPY}")
    stream = BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise WireError(f"{name} has no readable header ({type(error).__name__})") from None
    if dtype.kind not in "fiub" or not dtype.isnative:
        raise WireError(f"{name} has the type {dtype}, which is not a plain number")
    start = stream.tell()
    if fortran or any(side < 0 for side in shape) or prod(shape) * dtype.itemsize != len(array.data) - start:
        raise WireError(f"{name} says shape {shape} of {dtype}, but brings {len(array.data) - start} bytes")
    values = np.frombuffer(array.data, dtype, offset=start).reshape(shape)
    try:
        return torch.from_numpy(values.copy())
    except TypeError as error:
        raise WireError(f"{name}: {error}") from None
