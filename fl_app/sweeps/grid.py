"""Grids: a list stands for each of its values, and `{a,b}` in a text for each of its choices."""

from collections.abc import Mapping
from itertools import product
from typing import Any

CLOSING = {"(": ")", "[": "]", "{": "}"}


class GridError(ValueError):
    """A text whose braces cannot be read."""


def choices(text: str) -> list[str]:
    """`"f(p={0.9,0.6})"` -> `["f(p=0.9)", "f(p=0.6)"]`; several braces give every combination, quoted ones are text."""
    pieces: list[list[str]] = []
    start = place = 0
    while place < len(text):
        if text[place] in "'\"":
            place = _end_of_quote(text, place)
        elif text[place] == "{":
            inner, end = _items(text, place)
            pieces += [[text[start:place]], inner]
            start = end + 1
            place = end
        elif text[place] == "}":
            raise GridError(f"a '}}' without a '{{' in {text!r}")
        place += 1
    pieces.append([text[start:]])
    return ["".join(chosen) for chosen in product(*pieces)]


def _end_of_quote(text: str, place: int) -> int:
    """The place of the closing quote, or the end: what follows is then refused where the spec is read."""
    end = text.find(text[place], place + 1)
    return end if end != -1 else len(text)


def _items(text: str, opening: int) -> tuple[list[str], int]:
    """(what stands between the commas of a brace, the place of its end); commas in quotes or brackets do not count."""
    items, start, place, waiting = list[str](), opening + 1, opening + 1, list[str]()
    while place < len(text):
        sign = text[place]
        if sign in "'\"":
            place = _end_of_quote(text, place)
        elif sign in CLOSING:
            waiting.append(CLOSING[sign])
        elif waiting and sign == waiting[-1]:
            waiting.pop()
        elif not waiting and sign in ",}":
            items.append(text[start:place].strip())
            start = place + 1
            if sign == "}":
                break
        place += 1
    else:
        raise GridError(f"a '{{' without a '}}' in {text!r}")
    if not all(items):
        raise GridError(f"an empty choice in the braces of {text!r}")
    return [one for item in items for one in choices(item)], place


def values_of(given: Any) -> list[Any]:
    """All values that a setting stands for, each once."""
    listed = given if isinstance(given, list) else [given]
    if not listed:
        raise GridError("an empty list stands for nothing: name at least one value, or leave the setting out")
    found: list[Any] = []
    for one in listed:
        for value in choices(one) if isinstance(one, str) else [one]:
            if not any(type(value) is type(other) and value == other for other in found):  # True is not 1
                found.append(value)
    return found


def points(settings: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Every combination of the values, the last setting changing fastest."""
    return [dict(zip(settings, chosen, strict=True)) for chosen in product(*settings.values())]
