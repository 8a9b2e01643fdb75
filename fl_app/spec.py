"""Spec strings: `"refiner(eps=0.1) + prune(ratio=0.5)"` -> objects, for defenses, attacks, models and all else with a name.

A spec is parsed with `ast` and never evaluated. Unknown names and settings are answered with the valid ones.
"""

import ast
import dataclasses
import difflib
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

T = TypeVar("T")
MAX_LENGTH = 2000

PARSING = threading.Lock()
"""Python 3.11 counts the depth of a tree for all threads together, and fails if two of them parse at once."""


class SpecError(ValueError):
    """A spec that cannot be built; the message says what would be valid."""


class Part(NamedTuple):
    """One `name(key=value, ...)` of a spec."""

    name: str
    settings: dict[str, Any]


class Setting(NamedTuple):
    """A keyword that a named thing takes, with its type and default."""

    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether the keyword has no default."""
        return self.default is inspect.Parameter.empty


def suggest(word: str, valid: Iterable[str]) -> str:
    """The end of an error message: the closest valid word if one is close, and all of them."""
    names = sorted(valid)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"{hint}valid: {', '.join(names) or '(none)'}"


def parse(text: str) -> list[Part]:
    """Split a spec into its parts, in order."""
    if len(text) > MAX_LENGTH:
        raise SpecError(f"a spec has at most {MAX_LENGTH} characters, this one has {len(text)}")
    try:
        with PARSING:
            tree = ast.parse(text.strip(), mode="eval").body
        return [_part(node) for node in _summands(tree)]
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"cannot read the spec {text!r}: write name, name(key=value) or name(...) + name(...)") from None


def _summands(node: ast.expr) -> list[ast.expr]:
    parts: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts.append(node.right)
        node = node.left
    return [node, *reversed(parts)]


def _part(node: ast.expr) -> Part:
    if isinstance(node, ast.Name):
        return Part(node.id, {})
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise SpecError(f"'{ast.unparse(node)}' is not of the form name or name(key=value)")
    name = node.func.id
    if node.args:
        raise SpecError(f"{name}: settings are written key=value, not '{ast.unparse(node.args[0])}'")
    settings: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise SpecError(f"{name}: '**' is not allowed")
        try:
            settings[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, SyntaxError):
            shown = ast.unparse(keyword.value)
            raise SpecError(
                f"{name}: the value of {keyword.arg} must be a number, True/False, None, a 'quoted string' "
                f"or a list of those, not {shown}"
            ) from None
    return Part(name, settings)


def write(part: Part) -> str:
    """A part as the text that it is parsed from."""
    shown = ((key, list(value) if isinstance(value, tuple) else value) for key, value in part.settings.items())
    settings = ", ".join(f"{key}={value!r}" for key, value in shown)
    return f"{part.name}({settings})" if settings else part.name


@cache
def settings_of(factory: Callable[..., Any]) -> Mapping[str, Setting]:
    """The keyword-only parameters of a class or function."""
    hints = get_type_hints(factory, include_extras=True)
    return {
        name: Setting(hints.get(name, Any), parameter.default)
        for name, parameter in inspect.signature(factory).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


@cache
def _validator(factory: Callable[..., Any], setting: str) -> TypeAdapter[Any] | None:
    try:
        return TypeAdapter(settings_of(factory)[setting].annotation)
    except PydanticSchemaGenerationError:  # a setting that only code can pass, such as a tensor
        return None


def check(name: str, factory: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with their declared types, or an error that names the one at fault and what it may be."""
    known = settings_of(factory)
    checked = {}
    for key, value in settings.items():
        if key not in known:
            raise SpecError(f"{name} has no setting '{key}'; {suggest(key, known)}")
        validator = _validator(factory, key)
        try:
            # Lists stand for tuples in a spec; everything else must have its declared type.
            strict = not isinstance(value, list)
            checked[key] = validator.validate_python(value, strict=strict) if validator else value
        except ValidationError as error:
            reason = "; ".join(dict.fromkeys(detail["msg"] for detail in error.errors()))
            raise SpecError(f"{name}: {key}={value!r} is not allowed: {reason}") from None
    missing = [key for key, setting in known.items() if setting.required and key not in settings]
    if missing:
        raise SpecError(f"{name} needs {', '.join(f'{key}=...' for key in missing)}")
    return checked


class Checked:
    """Base of settings dataclasses: the declared types and ranges hold however the object was made."""

    def __post_init__(self) -> None:
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        for key, value in check(type(self).__name__, type(self), settings).items():
            object.__setattr__(self, key, value)


def lookup(kind: str, part: Part, registry: Mapping[str, Callable[..., T]]) -> tuple[Callable[..., T], dict[str, Any]]:
    """The registered factory of a part and its checked settings."""
    if part.name not in registry:
        raise SpecError(f"unknown {kind} '{part.name}'; {suggest(part.name, registry)}")
    return registry[part.name], check(part.name, registry[part.name], part.settings)


def build_part(kind: str, part: Part, registry: Mapping[str, Callable[..., T]], *args: Any) -> T:
    """Call the registered factory of one part with `args` and the part's settings."""
    factory, settings = lookup(kind, part, registry)
    try:
        return factory(*args, **settings)
    except SpecError:
        raise
    except ValueError as error:
        raise SpecError(f"{part.name}: {error}") from error


def build_one(kind: str, text: str, registry: Mapping[str, Callable[..., T]], *args: Any) -> T:
    """Build a spec that must have exactly one part."""
    return build_part(kind, single(kind, text), registry, *args)


def single(kind: str, text: str) -> Part:
    """The one part of a spec that must not be a sum."""
    parts = parse(text)
    if len(parts) != 1:
        raise SpecError(f"a {kind} is one name(...), not a sum: {text!r}")
    return parts[0]


def describe(factory: Callable[..., Any]) -> tuple[str, str]:
    """(settings with defaults, first line of the docstring) of a registered factory, for listings."""
    settings = ", ".join(
        f"{name}=..." if setting.required else f"{name}={setting.default!r}" for name, setting in settings_of(factory).items()
    )
    return settings, (inspect.getdoc(factory) or "").partition("\n")[0]
