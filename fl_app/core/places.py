"""Where things are kept on this machine."""

import os
from collections.abc import Callable
from pathlib import Path


def cache_dir() -> Path:
    """THORNS_DATA, or `thorns` in the user's cache directory."""
    chosen = os.environ.get("THORNS_DATA")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(chosen) if chosen else Path(base or Path.home() / ".cache") / "thorns"


_bring: list[Callable[[str], None]] = []
"""On a machine that works for another one: what brings a file of the other's cache, by its name in it, if that has it."""


def there(path: Path) -> bool:
    """Whether a file of the cache is there; where this process works for another machine, what that one has comes first."""
    if _bring and not path.exists() and path.is_relative_to(cache_dir()):
        _bring[-1](path.relative_to(cache_dir()).as_posix())
    return path.exists()


def bring_by(bring: Callable[[str], None]) -> None:
    """Ask this for files of the cache that are not there."""
    _bring[:] = [bring]
