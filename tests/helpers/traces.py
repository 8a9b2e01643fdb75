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
NEAR = 1e-2
"""How far a number may move: rounding differs between machines."""
INNER = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
"""Functions in some versions of Python only."""
OPEN = "-"
"""Stands for what is not compared."""
CLOCKED = ("Checkpoint.", "Pace.")
"""Whose objects hold the time."""


class Trace(NamedTuple):
    """Of one function: how often it was called, a checksum of what kinds of values it gave, their sizes and directions.

    What differs between machines, or with what ran before, is None and not compared.
    """

    calls: int | None
    kinds: str | None
    size: float | None
    direction: float | None

    def __str__(self) -> str:
        numbers = [OPEN if value is None else f"{value:.4f}" for value in self[2:]]
        return " ".join([*(OPEN if value is None else str(value) for value in self[:2]), *numbers])

    @classmethod
    def read(cls, words: Sequence[str]) -> "Trace":
        kinds = (int, str, float, float)
        return cls(*(None if word == OPEN else kind(word) for kind, word in zip(kinds, words, strict=True)))  # type: ignore[arg-type]


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
    """Compare with what is kept, or keep it in the folder KEEP_TRACES; says which functions give something else."""
    if folder := os.environ.get("KEEP_TRACES"):
        write(Path(folder) / f"{case}.txt", found)
        return
    kept = read(FOLDER / f"{case}.txt")
    told = [f"{name}: {kept.get(name)} -> {found.get(name)}" for name in sorted(kept | found) if not _near(name, kept, found)]
    assert not told, "\n".join([f"{len(told)} functions give something else; if that is meant: scripts/keep_traces.py", *told])


def write(path: Path, traces: Mapping[str, Trace]) -> None:
    """Keep the traces of a case, a function a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name} {one}\n" for name, one in sorted(traces.items())))


def read(path: Path) -> dict[str, Trace]:
    """The traces of a case."""
    return {line.split()[0]: Trace.read(line.split()[1:]) for line in path.read_text().splitlines()}


def agreed(runs: Sequence[Mapping[str, Trace]]) -> dict[str, Trace]:
    """What several runs of a case agree on, well within what a comparison allows."""
    found = {}
    for name in sorted({name for run in runs for name in run}):
        each = [run.get(name, Trace(None, None, None, None)) for run in runs]
        first = [column[0] if len(set(column)) == 1 else None for column in zip(*(one[:2] for one in each), strict=True)]
        numbers = [_middle(column) if None not in first else None for column in zip(*(one[2:] for one in each), strict=True)]
        found[name] = Trace(*first, *numbers)
    return found


def _middle(values: Sequence[float | None]) -> float | None:
    if None in values or not all(_close(a, b, NEAR / 20) for a in values for b in values):
        return None
    return values[0]


def _close(a: float | None, b: float | None, near: float = NEAR) -> bool:
    return a is None or b is None or math.isclose(a, b, rel_tol=near / 10, abs_tol=near)


def _near(name: str, kept: Mapping[str, Trace], found: Mapping[str, Trace]) -> bool:
    """Whether a function gives what it gave; one that is not always called may be missing."""
    nothing = Trace(None, None, None, None)
    if name not in kept or (name not in found and kept[name] != nothing):
        return False
    one, other = kept[name], found.get(name, nothing)
    same = all(a is None or a == b for a, b in zip(one[:2], other[:2], strict=True))
    return same and all(map(_close, one[2:], other[2:]))
