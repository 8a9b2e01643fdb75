"""What a client's reply holds: gradients, changes or weights, told apart by how far it is from the old weights."""

import pytest
import torch

from client_defenses.mods import ModError, check_payload


@pytest.mark.parametrize(
    ("payload", "new", "refused"),
    [
        ("delta", [2.0, 0.0], False),  # as far from the old weights as half of its own length
        ("delta", [1.9, 0.0], True),
        ("weights", [-2.0, 0.0], True),  # twice as long, and turned over
        ("weights", [-2.1, 0.0], False),
        ("weights", [0.25, 0.5], False),  # a quarter along the old weights
        ("weights", [0.24, 0.5], True),
    ],
)
def test_where_a_payload_begins_to_look_like_another(payload, new, refused):
    old, given = {"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor(new)}
    if refused:
        with pytest.raises(ModError, match=f"payload='{payload}' was declared"):
            check_payload(payload, given, old)
    else:
        check_payload(payload, given, old)
