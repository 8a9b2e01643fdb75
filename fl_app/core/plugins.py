"""Names from outside the package: `package.module:Name`, and entry points of installed packages.

Code is imported only for a name that this side's own user typed or allowed. A name that comes from the other side, in a
server's run config, a capture or somebody's experiment.toml, is refused until it is allowed by name.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib import metadata
from typing import Any

from fl_app.core.parsing import NAME, SpecError

ALLOW = "THORNS_ALLOW"
"""The names that are allowed, by commas; an environment variable, so that worker processes of this side know them too."""
GROUPS = {"defense": "thorns.defenses", "attack": "thorns.attacks", "model": "thorns.models", "data set": "thorns.datasets"}
GROUPS |= {"metric": "thorns.metrics"}
"""Kind -> entry points that register names for it."""
PLUGGED = re.compile(rf"(?:{NAME}\.)*{NAME}:{NAME}")


def allow(names: Iterable[str]) -> None:
    """Let these names be imported, in this process and in those that it starts."""
    os.environ[ALLOW] = ",".join(dict.fromkeys([*allowed(), *names]))


def allowed() -> list[str]:
    """The names that may be imported."""
    return [name for name in os.environ.get(ALLOW, "").split(",") if name]


def named_in(text: str) -> list[str]:
    """The plug-ins that a text names; texts in quotes, such as paths, do not count."""
    return PLUGGED.findall(re.sub(r"'[^']*'|\"[^\"]*\"", "", text))


@cache
def installed(kind: str) -> dict[str, metadata.EntryPoint]:
    """Name -> entry point, of the packages that registered something of a kind."""
    group = GROUPS.get(kind)
    return {one.name: one for one in metadata.entry_points(group=group)} if group else {}


def find(kind: str, name: str) -> Callable[..., Any] | None:
    """What a name that we did not register stands for; None if it is neither plugged in nor installed."""
    if name in installed(kind):
        found = installed(kind)[name].load()
    elif ":" in name:
        if name not in allowed():
            raise SpecError(f"{name} is code from outside Thorns: add --allow {name} (or set {ALLOW}) if you trust it")
        found = imported(kind, name)
    else:
        return None
    if not callable(found):
        raise SpecError(f"{name} is a {type(found).__name__}, not the class of a {kind}")
    return found  # type: ignore[no-any-return]


def imported(kind: str, name: str) -> Any:
    """Import `package.module:Name`, the current directory first; whatever its code raises is said in one line."""
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        importlib.invalidate_caches()
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # their code may raise anything, and a script may exit
        raise SpecError(f"the {kind} {name} cannot be imported: {type(error).__name__}: {error}") from error
