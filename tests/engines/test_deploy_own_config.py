"""A client's own settings are checked before it connects."""

import pytest

from fl_app.core.spec import SpecError
from fl_app.engines.grpc.connection import NodeSettings
from fl_app.engines.grpc.node import run_node


def test_a_misspelt_setting_ends_the_client_before_it_connects():
    settings = {"partition-id": 0, "num-partitions": 2, "defence": "dp_sgd"}
    with pytest.raises(SpecError, match="defense"):
        run_node(NodeSettings(superlink="127.0.0.1:1", node_config=settings, insecure=True))
