"""Every constant, default and bound of a file is as it was: whoever changes one says so in tests/golden/constants.txt.

Results that are published depend on each of them. After a change that is meant: KEEP_GOLDEN=1 pytest THIS_FILE.
"""

import importlib
import inspect
import os
from types import FunctionType, MethodType

import pytest
import torch
from pydantic.fields import FieldInfo

from helpers.paths import ROOT

PACKAGES = ("client_defenses", "strategies", "adversary", "fl_app/core")
FILES = sorted(str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
KEPT = ROOT / "tests" / "golden" / "constants.txt"
SIMPLE = (bool, int, float, type(None), torch.dtype)


def simple(value):
    """Whether a value is made of numbers alone, some perhaps by name."""
    if isinstance(value, dict):
        return bool(value) and all(map(simple, value.values())) and all(isinstance(key, str | torch.dtype) for key in value)
    return all(map(simple, value)) if isinstance(value, tuple | list) else isinstance(value, SIMPLE)


def bounds(hint):
    """What a type says beyond itself: the bounds of a setting."""
    notes = [note for note in getattr(hint, "__metadata__", ()) if isinstance(note, FieldInfo)]
    inner = [found for one in getattr(hint, "__args__", ()) if not isinstance(one, str) for found in bounds(one)]
    return [str(bound) for note in notes for bound in note.metadata] + inner


def defined(thing, prefix):
    """Lines about what a module or a class defines."""
    told = [
        f"{prefix}{name} {found}" for name, hint in vars(thing).get("__annotations__", {}).items() if (found := bounds(hint))
    ]
    for name, value in vars(thing).items():
        if name.startswith("__") and name.endswith("__") and not hasattr(value, "__code__"):
            continue
        found = value.__func__ if isinstance(value, classmethod | staticmethod | MethodType) else value
        if simple(value) and (name.isupper() or inspect.isclass(thing)):
            told.append(f"{prefix}{name} = {value!r}")
        elif bounds(value):
            told.append(f"{prefix}{name} {bounds(value)}")
        elif getattr(found, "__module__", None) != getattr(thing, "__module__", thing.__name__):
            continue
        elif isinstance(found, FunctionType) and found.__code__.co_filename.endswith(".py"):  # not what a dataclass writes
            given = {
                key: one.default for key, one in inspect.signature(found).parameters.items() if one.default is not one.empty
            }
            told += [f"{prefix}{name}({key}={one!r})" for key, one in given.items() if simple(one)]
        elif inspect.isclass(found) and found is not thing:
            told += defined(found, f"{prefix}{name}.")
    return told


@pytest.fixture(scope="session")
def kept():
    if os.environ.get("KEEP_GOLDEN"):
        lines = [f"{file}: {line}\n" for file in FILES for line in lines_of(file)]
        KEPT.write_text("".join(lines))
    return KEPT.read_text().splitlines()


def lines_of(file):
    module = importlib.import_module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    return sorted(defined(module, ""))


@pytest.mark.parametrize("file", FILES)
def test_constants_are_as_they_were(file, kept):
    assert [f"{file}: {line}" for line in lines_of(file)] == [line for line in kept if line.startswith(f"{file}: ")]
