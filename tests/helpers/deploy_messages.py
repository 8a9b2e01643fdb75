"""What the tests of a deployment share: tensors as messages, whole and damaged."""

import torch
from flwr.app import Array, ArrayRecord

from fl_app.core.wire import to_tensors
from fl_app.engines.grpc import packing

TENSORS = {"a.weight": torch.arange(30.0).reshape(3, 2, 5) / 7, "b": torch.tensor(7), "empty": torch.zeros(0, 4)}


def equal(record, tensors):
    back = to_tensors(record)
    return list(back) == list(tensors) and all(torch.equal(back[name], tensors[name]) for name in tensors)


def damaged(data):
    return ArrayRecord({packing.PACKED: Array("uint8", (len(data),), packing.PACKED, data)})
