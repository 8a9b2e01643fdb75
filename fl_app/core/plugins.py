"""Names from outside the package: `package.module:Name`, and entry points of installed packages.

Code is imported only for a name that this side's own user typed or allowed. A name that comes from the other side, in a
server's run config, a capture or somebody's experiment.toml, is refused until it is allowed by name. Whoever installs a
package that registers entry points has allowed those.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import Any

from fl_app.core.parsing import NAME, SpecError, with_article

ALLOW = "THORNS_ALLOW"
"""The names that are allowed, by commas; an environment variable, so that worker processes of this side know them too."""
GROUPS = {"defense": "thorns.defenses", "attack": "thorns.attacks", "model": "thorns.models", "data set": "thorns.datasets"}
GROUPS |= {"metric": "thorns.metrics"}
"""Kind -> entry points that register names for it."""
OURS = ("adversary", "client_defenses", "fl_app", "strategies")
"""Packages whose things have names of their own, so that nobody has to allow them."""
PLUGGED = re.compile(rf"(?<![A-Za-z0-9_.])(?:{NAME}\.)*{NAME}:{NAME}")
TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
HOW = "add --allow {0} (or set {1}={0}; in Python: fl_app.core.plugins.allow)"


class NotAllowed(SpecError):
    """A name whose code nobody on this side has allowed."""


def allow(names: Iterable[str]) -> None:
    """Let these names be imported, in this process and in those that it starts."""
    added = [name.strip() for name in names]
    for name in added:
        if not PLUGGED.fullmatch(name):
            raise SpecError(f"{name!r} cannot be allowed: code is allowed by name, as package.module:Name")
    if not set(added) <= set(allowed()):
        os.environ[ALLOW] = ",".join(dict.fromkeys([*allowed(), *added]))


def allowed() -> list[str]:
    """The names that may be imported."""
    return [name.strip() for name in os.environ.get(ALLOW, "").split(",") if name.strip()]


def again(words: Iterable[str]) -> list[str]:
    """A command to go on with, with what it has to allow: it reads from files what a person typed before."""
    return [*words, *(word for name in allowed() for word in ("--allow", name))]


def named_in(text: str) -> list[str]:
    """The plug-ins that a text names; texts in quotes, such as paths, do not count."""
    return PLUGGED.findall(TEXT.sub("''", text)) if ":" in text else []


def check_named(source: str, given: Any, keys: Iterable[str]) -> None:
    """Refuse settings from elsewhere, maybe in tables, whose values at `keys` name code that nobody here has allowed."""
    if not isinstance(given, dict):
        return
    for key, value in given.items():
        check_named(source, value, keys)
        for text in value if isinstance(value, list) else [value]:
            for name in named_in(text) if key in keys and isinstance(text, str) else ():
                if name not in allowed():
                    how = HOW.format(name, ALLOW)
                    raise NotAllowed(f"{source}: {key} names {name}, which is code from outside Thorns: {how} if you trust it")


@cache
def registered(kind: str) -> dict[str, list[metadata.EntryPoint]]:
    """Name -> entry points, of the packages that registered something of a kind; several if packages chose the same name."""
    found: dict[str, list[metadata.EntryPoint]] = {}
    for one in metadata.entry_points(group=GROUPS[kind]) if kind in GROUPS else ():
        found.setdefault(one.name, []).append(one)
    return found


def packages(kind: str, name: str) -> list[str]:
    """The installed packages that registered a name."""
    return [one.dist.name if one.dist else "?" for one in registered(kind).get(name, [])]


def foreign(kind: str, name: str) -> bool:
    """Whether a name that we did not register ourselves may stand for something: plugged in or installed."""
    return ":" in name or name in registered(kind)


def find(kind: str, name: str) -> Callable[..., Any] | None:
    """What a name that we did not register stands for; None if it is neither plugged in nor installed."""
    if not foreign(kind, name):
        return None
    with explained(kind, name):
        if ":" not in name:
            several = packages(kind, name)
            if len(several) > 1:
                raise SpecError(f"the {kind} '{name}' is registered by {' and '.join(several)}: uninstall one of them")
            found = registered(kind)[name][0].load()
        elif name not in allowed():
            raise NotAllowed(f"{name} is code from outside Thorns: {HOW.format(name, ALLOW)} if you trust it")
        else:
            found = _imported(name)
        if not callable(found):
            raise SpecError(f"{name} is {with_article(type(found).__name__)}, not {with_article(kind)}")
    know(found)
    return found  # type: ignore[no-any-return]


@contextmanager
def explained(kind: str, name: str) -> Iterator[None]:
    """What code from outside raises is said in one line: it may raise anything, and a script may exit."""
    try:
        yield
    except SpecError:
        raise
    except (Exception, SystemExit) as error:
        words = " ".join(str(error).split())
        raise SpecError(f"the {kind} {name} cannot be used: {type(error).__name__}: {words}") from error


def check_made(kind: str, name: str, made: object, base: type | None) -> None:
    """Refuse what a foreign name made if it is not of the kind that was asked for."""
    if base is not None and not isinstance(made, base):
        found, wanted = with_article(type(made).__name__), with_article(kind)
        raise SpecError(f"{name} makes {found}, not {wanted} ({base.__module__}.{base.__qualname__})")
    know(type(made))


def know(found: Any) -> None:
    """Allow a thing that is imported already under the name that its own module gives it, by which specs are written."""
    name = f"{getattr(found, '__module__', '')}:{getattr(found, '__qualname__', '')}"
    if PLUGGED.fullmatch(name) and name.partition(".")[0] not in OURS:
        allow([name])


def _imported(name: str) -> Any:
    """Import `package.module:Name`, also from the current directory."""
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last: a file that lies about must not stand in for an installed module
    importlib.invalidate_caches()
    found = importlib.import_module(module)
    if not hasattr(found, attribute):
        public = ", ".join(sorted(word for word in vars(found) if not word.startswith("_"))[:12])
        raise SpecError(f"{getattr(found, '__file__', module)} has no '{attribute}'; it has: {public}")
    return getattr(found, attribute)
