"""What the tests of a deployment share: tensors as messages, and who Flower thinks is speaking."""

import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.supercore.task_identity import TaskIdentity

from fl_app.core.wire import to_tensors
from fl_app.engines.grpc import packing

TENSORS = {"a.weight": torch.arange(30.0).reshape(3, 2, 5) / 7, "b": torch.tensor(7), "empty": torch.zeros(0, 4)}


@pytest.fixture(autouse=True)
def identity():
    """What Flower's Message takes its sender from."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def equal(record, tensors):
    back = to_tensors(record)
    return list(back) == list(tensors) and all(torch.equal(back[name], tensors[name]) for name in tensors)


def damaged(data):
    return ArrayRecord({packing.PACKED: Array("uint8", (len(data),), packing.PACKED, data)})
