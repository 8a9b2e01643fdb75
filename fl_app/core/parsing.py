"""The text of a spec, `"refiner(eps=0.1) + prune(ratio=0.5)"` or `"matching(priors=[tv(0.01)])"`, as parts, and back.

A reader of its own: Python's `ast` is not safe to use from several threads in 3.11, and would accept far more than this.
"""

import math
import re
from typing import Any, NamedTuple

MAX_LENGTH = 2000
MAX_DEPTH = 12
NAME = r"[A-Za-z_][A-Za-z0-9_]*"
TOKEN = re.compile(
    rf"""\s*(?:
    (?P<number>[+-]?(?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_.]))
    |(?P<text>'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")
    |(?P<name>(?:{NAME}\.)*{NAME}:{NAME}|{NAME})
    |(?P<mark>[()\[\],=+])
    )""",
    re.VERBOSE,
)
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
ESCAPED = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "r": "\r", "t": "\t"}
WORDS = {"True": True, "False": False, "None": None}
LISTS = {"[": "]", "(": ")"}


class SpecError(ValueError):
    """A spec that cannot be built; the message says what would be valid."""


def with_article(word: str) -> str:
    """`"an attack"`, `"a model"`."""
    return f"{'an' if word[:1].lower() in 'aeio' else 'a'} {word}"


class Part(NamedTuple):
    """One `name(value, key=value, ...)` of a spec; a name is a registered one, or `package.module:Name`."""

    name: str
    settings: dict[str, Any]
    values: tuple[Any, ...] = ()
    """Values without a key, in the order of the settings."""


def parse(text: str) -> list[Part]:
    """Split a spec into its parts, in order; nothing in it is evaluated."""
    if len(text) > MAX_LENGTH:
        raise SpecError(f"a spec has at most {MAX_LENGTH} characters, this one has {len(text)}")
    reader = _Reader(text)
    parts = [reader.part(0)]
    while reader.take("+"):
        parts.append(reader.part(0))
    if reader.kind:
        raise reader.wrong()
    return parts


class _Reader:
    """Reads tokens from left to right, one ahead."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0
        self.kind, self.token = "", ""
        self.next()

    def next(self) -> None:
        """Read one more token; kind '' at the end."""
        if not self.text[self.place :].strip():
            self.kind, self.token = "", ""
            return
        found = TOKEN.match(self.text, self.place)
        if found is None:
            raise self.wrong()
        self.kind = found.lastgroup or ""
        self.token, self.place = found[self.kind], found.end()

    def wrong(self) -> SpecError:
        """What is said of a text that is no spec."""
        return SpecError(f"cannot read the spec {self.text!r}: write name, name(key=value) or name(...) + name(...)")

    def take(self, mark: str) -> bool:
        """Pass over a mark if it is the next token."""
        if self.kind != "mark" or self.token != mark:
            return False
        self.next()
        return True

    def need(self, mark: str) -> None:
        """Pass over a mark that must be there."""
        if not self.take(mark):
            raise self.wrong()

    def part(self, depth: int) -> Part:
        """`name` or `name(...)`."""
        if self.kind != "name" or self.token in WORDS or depth > MAX_DEPTH:
            raise self.wrong()
        name = self.token
        self.next()
        settings: dict[str, Any] = {}
        values: list[Any] = []
        if self.take("("):
            while not self.take(")"):
                self.argument(name, settings, values, depth)
                if not self.take(","):
                    self.need(")")
                    break
        return Part(name, settings, tuple(values))

    def argument(self, name: str, settings: dict[str, Any], values: list[Any], depth: int) -> None:
        """`key=value`, or a value alone as long as no key came before it."""
        value = self.value(name, depth + 1)
        if not self.take("="):
            if settings:
                raise SpecError(f"{name}: a value without a key cannot follow key=value")
            values.append(value)
            return
        if not isinstance(value, Part) or value.settings or value.values or ":" in value.name:
            raise self.wrong()
        key = value.name
        if key in settings:
            raise SpecError(f"{name}: {key} is given twice")
        settings[key] = self.value(f"{name}: the value of {key}", depth + 1)

    def value(self, what: str, depth: int) -> Any:
        """A number, a text, True, False, None, a list, or a part."""
        if depth > MAX_DEPTH:
            raise self.wrong()
        kind, token = self.kind, self.token
        if kind == "number":
            self.next()
            return _number(what, token)
        if kind == "text":
            self.next()
            return ESCAPE.sub(lambda found: _unescaped(what, found[1]), token[1:-1])
        if kind == "name" and token in WORDS:
            self.next()
            return WORDS[token]
        if kind == "mark" and token in LISTS:
            self.next()
            items = []
            while not self.take(LISTS[token]):
                items.append(self.value(what, depth + 1))
                if not self.take(","):
                    self.need(LISTS[token])
                    break
            return items
        return self.part(depth)


def _number(what: str, token: str) -> int | float:
    if re.fullmatch(r"[+-]?[0-9_]+", token):
        return int(token)
    value = float(token)
    if not math.isfinite(value):
        raise SpecError(f"{what}: {token} is too large for a number")
    return value


def _unescaped(what: str, code: str) -> str:
    if len(code) > 1:
        number = int(code[1:], 16)
        if number > 0x10FFFF:
            raise SpecError(f"{what}: \\{code} is no character")
        return chr(number)
    if code not in ESCAPED:
        raise SpecError(f"{what}: \\{code} has no meaning in a text")
    return ESCAPED[code]


def write(part: Part) -> str:
    """A part as the text that it is read from."""
    shown = [written(value) for value in part.values]
    shown += [f"{key}={written(value)}" for key, value in part.settings.items()]
    return f"{part.name}({', '.join(shown)})" if shown else part.name


def written(value: Any) -> str:
    """A value as the text that it is read from."""
    if isinstance(value, Part):
        return write(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    return repr(value)
