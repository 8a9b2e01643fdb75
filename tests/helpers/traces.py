"""What every function of the project returns while something runs, as a few numbers each: to be compared with kept ones.

An answer alone hides much: a wrong weight inside a search still leads somewhere. Here each function on the way is looked at.
"""

import dataclasses
import inspect
import math
import os
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import Array, Message

from helpers.paths import ROOT

FOLDER = ROOT / "tests" / "golden" / "traces"
PACKAGES = ("adversary", "client_defenses", "fl_app", "strategies")
LARGE = 2**32
"""Keys from here on are places in memory."""
CALLS = 12
"""Calls of a function that are looked at; the others are only counted."""
SMALL = 1e-4
"""Sizes below this count for less and less, so that what is zero up to rounding does not matter."""
NEAR = 2e-3
"""How far a number may move: rounding differs between machines."""
INNER = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
"""Functions in some versions of Python only."""
CLOCKED = ("Checkpoint.", "Pace.")
"""Whose objects hold the time."""


class Trace(NamedTuple):
    """Of one function: how often it was called, a checksum of what kinds of values it gave, their sizes and directions."""

    calls: int
    kinds: str
    size: float
    direction: float

    def __str__(self) -> str:
        return f"{self.calls} {self.kinds} {self.size:.4f} {self.direction:.4f}"

    @classmethod
    def read(cls, words: Sequence[str]) -> "Trace":
        return cls(int(words[0]), words[1], float(words[2]), float(words[3]))


def traced(work: Callable[[], object], *parts: str, numbers: bool = True) -> dict[str, Trace]:
    """What the functions in files whose paths begin with one of these return while the work is done; or their kinds alone."""
    seen, calls = defaultdict[str, list[Any]](list), defaultdict[str, int](int)
    beginnings = tuple(f"{ROOT}/{part}" for part in parts)

    def note(frame: Any, event: str, value: object) -> None:
        code = frame.f_code
        if event != "return" or not code.co_filename.startswith(beginnings) or code.co_name in INNER:
            return
        if not code.co_flags & inspect.CO_OPTIMIZED:  # a module or the body of a class, which run once
            return
        name = f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_qualname}"
        calls[name] += 1
        if calls[name] <= CALLS:
            sys.setprofile(None)
            # What gives nothing back has changed something: its object, mostly.
            seen[name] += _leaves(vars(frame.f_locals["self"]) if _changes(frame, value) else value)
            sys.setprofile(note)

    _forget()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return {
        name: _summed(calls[name], leaves if numbers else [(kind, []) for kind, _ in leaves]) for name, leaves in seen.items()
    }


def _forget() -> None:
    """Empty all caches of ours, so that it does not matter which test came before."""
    ours = [module for name, module in list(sys.modules.items()) if name.startswith(PACKAGES)]
    for clear in {id(one): getattr(one, "cache_clear", None) for module in ours for one in vars(module).values()}.values():
        if clear is not None:
            clear()


def _changes(frame: Any, value: object) -> bool:
    return (
        value is None and hasattr(frame.f_locals.get("self"), "__dict__") and not frame.f_code.co_qualname.startswith(CLOCKED)
    )


def _leaves(value: object, depth: int = 5) -> Iterator[tuple[str, list[float]]]:
    """(kind, numbers) of each thing in a value."""
    match value:
        case torch.Tensor():
            try:
                numbers = torch.nan_to_num(value.detach().double(), nan=7.0, posinf=8.0, neginf=-8.0).flatten().tolist()
            except RuntimeError:  # within vmap nobody knows
                numbers = []
            yield f"{value.dtype} {tuple(value.shape)} {value.requires_grad}", numbers
        case bool() | int() | float():
            yield "number", [float(value) if math.isfinite(value) else 9.0]
        case str() | None:
            yield "a path" if "/" in str(value) else repr(value), []
        case Message() if depth:
            about, failed = value.metadata, value.has_error()
            yield f"{about.message_type} {about.src_node_id} {about.dst_node_id} {value.error.reason if failed else ''}", []
            yield from _leaves({} if failed else dict(value.content), depth - 1)
        case Array():
            yield from _leaves(torch.tensor(value.numpy()))
        case Mapping() if depth:
            for name, one in value.items():
                yield f"{name}:" if isinstance(name, str) or name < LARGE else "an id:", []
                yield from _leaves(one, depth - 1)
        case list() | tuple() | set() if depth:
            yield f"{len(value)}", []
            for one in sorted(value, key=str) if isinstance(value, set) else value:
                yield from _leaves(one, depth - 1)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type) and depth:
            yield type(value).__name__, []
            for name in (field.name for field in dataclasses.fields(value)):
                yield from _leaves(getattr(value, name, None), depth - 1)
        case _:
            yield type(value).__name__, []


def _summed(calls: int, leaves: Sequence[tuple[str, list[float]]]) -> Trace:
    kinds = zlib.crc32("\n".join(kind for kind, _ in leaves).encode())
    size, direction, place = 0.0, 0.0, 0
    for _, numbers in leaves:
        if numbers:
            place += 1
            values = torch.tensor(numbers, dtype=torch.float64)
            norm = values.norm().item()
            size += (1 + 0.5 * math.cos(place)) * math.asinh(norm / SMALL)
            turned = torch.cos(0.7 * place + 0.9 * torch.arange(len(numbers), dtype=torch.float64))
            direction += (values @ turned).item() / (norm + SMALL)
    return Trace(calls, f"{kinds:08x}", size, direction)


def check(case: str, found: Mapping[str, Trace]) -> None:
    """Compare with what is kept, or keep it if KEEP_GOLDEN is set; says which functions give something else."""
    path = FOLDER / f"{case}.txt"
    if os.environ.get("KEEP_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{name} {one}\n" for name, one in sorted(found.items())))
    kept = {line.split()[0]: Trace.read(line.split()[1:]) for line in path.read_text().splitlines()}
    told = [f"{name}: {kept.get(name)} -> {found.get(name)}" for name in sorted(kept | found) if not _near(name, kept, found)]
    assert not told, "\n".join([f"{len(told)} functions give something else; if that is meant: KEEP_GOLDEN=1 pytest", *told])


def _near(name: str, kept: Mapping[str, Trace], found: Mapping[str, Trace]) -> bool:
    if name not in kept or name not in found:
        return False
    one, other = kept[name], found[name]
    close = all(math.isclose(a, b, rel_tol=NEAR / 10, abs_tol=NEAR) for a, b in zip(one[2:], other[2:], strict=True))
    return one[:2] == other[:2] and close
