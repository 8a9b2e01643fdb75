import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture
def identity():
    """What Flower's Message takes its sender from."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
