"""Which functions each test runs, and for how long: recorded once per test file, so that a mutant meets only its own tests."""

import hashlib
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from mutation.operators import Mutant

SLOW, WAITS = 6, 180
"""Seconds of its own computing, traced and so more than it takes otherwise, and of all with its fixtures: more is not fast."""
OTHERS = (".", "tests/")  # what lies in the checkout and is not its code
EVERY = "tests/core/test_constants.py"
"""Looks at what every file defines when it is imported, and so meets all mutants of that, before other tests."""


class Record:
    """Of every test file its checksum, the libraries it imports, and of every test that passed: CPU seconds, functions run."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        self._files: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() and not fresh else {}

    def stale(self, root: Path, names: list[str]) -> list[str]:
        """Test files that have to be recorded (again)."""
        return [name for name in names if self._files.get(name, {}).get("checksum") != _checksum(root / name)]

    def write(self, root: Path, name: str, tests: dict[str, Any], libraries: list[str]) -> None:
        """Keep what was found out about a test file."""
        self._files[name] = {"checksum": _checksum(root / name), "tests": tests, "libraries": libraries}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self._files))

    def libraries(self, names: list[str]) -> list[str]:
        """What these files import, in the order of the imports."""
        return list(dict.fromkeys(one for name in names for one in self._files.get(name, {}).get("libraries", ())))

    def tests_in(self, name: str) -> list[str]:
        """The tests of a file, the quickest first."""
        tests = self._files[name]["tests"]
        return sorted(tests, key=lambda test: tests[test]["seconds"])

    def tests_of(self, mutant: Mutant, names: list[str], budget: float) -> dict[str, float]:
        """Seconds of the tests in these files that run its function (or any of its file), up to so many in all.

        The quickest files come first; tests of a file stay together, as they share what it prepares.
        """
        by_file = []
        for name in names:
            file = self._files[name]
            known = file["tests"]
            times = {test: known[test]["seconds"] for test in self.tests_in(name) if _meets(test, known[test], mutant)}
            by_file.append((name != EVERY, sum(times.values()), times))
        chosen: dict[str, float] = {}
        for *_, times in sorted(by_file, key=lambda one: one[:2]):
            for test, seconds in times.items():
                if not chosen or sum(chosen.values()) + seconds <= budget:
                    chosen[test] = seconds
        return chosen


def _meets(name: str, test: dict[str, Any], mutant: Mutant) -> bool:
    if mutant.place:
        return f"{mutant.path} {mutant.place}" in test["functions"]
    return name.startswith(EVERY) or any(function.startswith(f"{mutant.path} ") for function in test["functions"])


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Recorder:
    """A pytest plugin that traces calls of the checkout's functions."""

    def __init__(self, root: Path) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self._root = f"{root}/"
        self._ran: set[Any] = set()
        self._passed = True

    def _trace(self, frame: FrameType, event: str, arg: object) -> None:
        # By its module: what dataclasses write for a class has no file.
        self._ran.add((frame.f_globals.get("__file__", ""), frame.f_code.co_qualname))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace one test with its fixtures, and stop it when it is slow."""
        self._ran, self._passed = set(), True
        _stop_after(WAITS, signal.ITIMER_REAL, signal.SIGALRM)
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        start = time.process_time()
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if self._passed:
                seconds = round(time.process_time() - start, 2)
                self.tests[item.nodeid] = {"seconds": seconds, "functions": self._functions()}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Stop a test that computes for long."""
        _stop_after(SLOW, signal.ITIMER_PROF, signal.SIGPROF)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _functions(self) -> list[str]:
        ran = {f"{file.removeprefix(self._root)} {name}" for file, name in self._ran if file.startswith(self._root)}
        return sorted(name for name in ran if not name.startswith(OTHERS))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that failed, was skipped or took too long is left out."""
        self._passed &= report.passed


def _stop_after(seconds: float, clock: int, number: int) -> None:
    signal.signal(number, _too_slow)
    signal.setitimer(clock, seconds)


def _too_slow(number: int, frame: FrameType | None) -> None:
    pytest.fail("this is no fast test")
