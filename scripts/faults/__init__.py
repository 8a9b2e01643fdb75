"""What goes wrong in a deployment, done on purpose to real processes; `deploy_faults.py` runs it and prints what was seen."""

import os
from pathlib import Path

PLAN = "THORNS_FAULTS"
"""Names the file with the plan of what clients do wrong; notes of what was begun are written beside it."""


def marker(client: int, server_round: int) -> Path:
    """Is there once a client has begun to be at fault."""
    return Path(os.environ[PLAN]).with_name(f"begun-{client}-{server_round}")
