"""Settings as text: values, assignments and files in TOML."""

import json
import tomllib
from pathlib import Path
from typing import Any

from fl_app.core.errors import said

Value = bool | int | float | str


class ConfigError(ValueError):
    """Settings that cannot be run; the message names each and what it may be."""


def toml_value(value: Value) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def load_toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds; ConfigError if it is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {said(error)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from None


def parse_assignment(text: str) -> tuple[str, Any]:
    """`key=value` -> (key, value); the value is TOML, or else taken as text."""
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"'{text}' is not of the form key=value")
    try:
        return key.strip(), tomllib.loads(f"value = {raw.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), raw.strip()
