"""Specs -> objects, for defenses, attacks, models and all else with a name; unknown ones are answered with the valid ones.

A setting may itself be a named thing: its annotation then says of which kind, `Annotated[Prior, Named("prior", PRIORS)]`.
"""

import dataclasses
import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from fl_app.core import plugins
from fl_app.core.parsing import Part, SpecError, parse, with_article, write

T = TypeVar("T")
Registry = Mapping[str, Callable[..., T]]
__all__ = [
    "Checked",
    "Named",
    "Part",
    "Registry",
    "Setting",
    "SpecError",
    "build_one",
    "build_part",
    "check",
    "describe",
    "lookup",
    "parse",
    "settings_of",
    "single",
    "suggest",
    "text_of",
    "write",
]


class Named(NamedTuple):
    """Says in an annotation that a setting is a registered thing, or with a tuple type several of them."""

    kind: str
    registry: Callable[[], Registry[Any]]
    """A function, so that a registry may be filled by modules that come later."""


class Setting(NamedTuple):
    """A keyword that a named thing takes, with its type and default."""

    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether the keyword has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def named(self) -> Named | None:
        """Of which kind the value is, if it is a registered thing."""
        return next((one for one in getattr(self.annotation, "__metadata__", ()) if isinstance(one, Named)), None)

    @property
    def several(self) -> bool:
        """Whether the value is a tuple of registered things."""
        return get_origin(getattr(self.annotation, "__origin__", self.annotation)) is tuple

    @property
    def base(self) -> type | None:
        """The class that a registered thing must have; None if its annotation is no class."""
        one = getattr(self.annotation, "__origin__", self.annotation)
        one = get_args(one)[0] if self.several else one
        return one if isinstance(one, type) else None


def suggest(word: str, valid: Iterable[str]) -> str:
    """The end of an error message: the closest valid word if one is close, and all of them."""
    names = sorted(valid)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"{hint}valid: {', '.join(names) or '(none)'}"


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


def check(
    name: str, factory: Callable[..., Any], settings: Mapping[str, Any], spelled: Callable[[str], str] = str
) -> dict[str, Any]:
    """The settings with their declared types, or an error that names the one at fault, as it is `spelled`, and its choices."""
    known = settings_of(factory)
    checked = {}
    for key, value in settings.items():
        if key not in known:
            raise SpecError(f"{name} has no setting '{spelled(key)}'; {suggest(spelled(key), map(spelled, known))}")
        named, base = known[key].named, known[key].base
        if named is None:
            checked[key] = _value(name, factory, key, value, spelled(key))
        else:
            several = known[key].several
            checked[key] = (_pieces if several else _piece)(name, key, named, base, value)
    missing = [key for key, setting in known.items() if setting.required and key not in settings]
    if missing:
        raise SpecError(f"{name} needs {', '.join(f'{key}=...' for key in missing)}")
    return checked


def _value(name: str, factory: Callable[..., Any], key: str, value: Any, shown: str) -> Any:
    if isinstance(value, Part):
        if value.settings or value.values or ":" in value.name:
            raise SpecError(
                f"{name}: {shown}={write(value)} is not allowed: it takes a number, a text, True, False, None or a list"
            )
        value = value.name  # a word without its quotes
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"{name}: {shown}={value!r} is not allowed: it must be a finite number")
    validator = _validator(factory, key)
    try:
        # Lists stand for tuples in a spec; everything else must have its declared type.
        return validator.validate_python(value, strict=not isinstance(value, list)) if validator else value
    except ValidationError as error:
        reason = "; ".join(dict.fromkeys(detail["msg"] for detail in error.errors()))
        raise SpecError(f"{name}: {shown}={value!r} is not allowed: {reason}") from None


def _pieces(name: str, key: str, named: Named, base: type | None, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or isinstance(value, Part):
        raise SpecError(f"{name}: {key} is a list of {named.kind}s, such as [{next(iter(named.registry()), '')}]")
    return tuple(_piece(name, key, named, base, one) for one in value)


def _piece(name: str, key: str, named: Named, base: type | None, value: Any) -> Any:
    """A registered thing: as it is written in a spec, or the object itself."""
    if isinstance(value, str):
        value = Part(value, {})
    if isinstance(value, Part):
        return build_part(named.kind, value, named.registry(), base=base)
    if isinstance(value, base or Checked):
        return value
    raise SpecError(
        f"{name}: {key}={value!r} is not allowed: it names {with_article(named.kind)}; {suggest('', named.registry())}"
    )


class Checked:
    """Base of settings dataclasses: the declared types and ranges hold however the object was made."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if not field.kw_only:
                why = "must be given by name: use @dataclass(frozen=True, kw_only=True)"
                raise SpecError(f"{type(self).__name__}: {field.name} {why}")
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        for key, value in check(type(self).__name__, type(self), settings).items():
            object.__setattr__(self, key, value)


def lookup(kind: str, part: Part, registry: Registry[T]) -> tuple[Callable[..., T], dict[str, Any]]:
    """The factory of a part, registered or plugged in, and its checked settings."""
    if part.name in registry:
        return registry[part.name], _settings(part, registry[part.name])
    factory = plugins.find(kind, part.name)
    if factory is None:
        raise SpecError(f"unknown {kind} '{part.name}'; {suggest(part.name, {*registry, *plugins.registered(kind)})}")
    with plugins.explained(kind, part.name):
        return factory, _settings(part, factory)


def _settings(part: Part, factory: Callable[..., Any]) -> dict[str, Any]:
    settings = dict(part.settings)
    if part.values:  # one value stands for the first setting: tv(0.01), prune(0.9)
        known = list(settings_of(factory))
        if len(part.values) > 1 or not known or known[0] in settings:
            raise SpecError(f"{part.name}: settings are written key=value, not '{write(part)}'; valid: {', '.join(known)}")
        settings[known[0]] = part.values[0]
    return check(part.name, factory, settings)


def build_part(kind: str, part: Part, registry: Registry[T], *args: Any, base: type | None = None) -> T:
    """Call the factory of one part with `args` and the part's settings; one from outside must make a `base`."""
    factory, settings = lookup(kind, part, registry)
    if part.name not in registry:
        with plugins.explained(kind, part.name):
            made = factory(*args, **settings)
        plugins.check_made(kind, part.name, made, base)
        return made
    try:
        return factory(*args, **settings)
    except SpecError:
        raise
    except ValueError as error:
        raise SpecError(f"{part.name}: {error}") from error


def build_one(kind: str, text: str, registry: Registry[T], *args: Any, base: type | None = None) -> T:
    """Build a spec that must have exactly one part."""
    return build_part(kind, single(kind, text), registry, *args, base=base)


def single(kind: str, text: str) -> Part:
    """The one part of a spec that must not be a sum."""
    parts = parse(text)
    if len(parts) != 1:
        raise SpecError(f"{with_article(kind)} is one name(...), not a sum: {text!r}")
    return parts[0]


def describe(factory: Callable[..., Any]) -> tuple[str, str]:
    """(settings with defaults, first line of the docstring) of a registered factory, for listings."""
    settings = ", ".join(
        f"{name}=..." if setting.required else f"{name}={setting.default!r}" for name, setting in settings_of(factory).items()
    )
    return settings, (inspect.getdoc(factory) or "").partition("\n")[0]


def text_of(thing: Any, registry: Registry[Any]) -> str:
    """The spec of an object whose class is registered or can be imported: what it was built from, defaults left out."""
    return write(_part_of(thing, registry))


def _part_of(thing: Any, registry: Registry[Any]) -> Part:
    factory: Callable[..., Any] = type(thing)
    plugged = f"{factory.__module__}:{factory.__qualname__}"
    name = next((name for name, one in registry.items() if one is factory), plugged)
    if name is plugged:
        plugins.know(factory)  # code that is here already made it, so its spec may be read back
    settings = {}
    for key, setting in settings_of(factory).items():
        value, named = getattr(thing, key), setting.named
        if value == setting.default:
            continue
        if named is not None:
            one = named.registry()
            value = [_part_of(each, one) for each in value] if setting.several else _part_of(value, one)
        settings[key] = value
    return Part(name, settings)
