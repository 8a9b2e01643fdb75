"""Where things are kept on this machine."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """THORNS_DATA, or `thorns` in the user's cache directory."""
    chosen = os.environ.get("THORNS_DATA")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(chosen) if chosen else Path(base or Path.home() / ".cache") / "thorns"
