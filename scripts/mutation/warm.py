"""Many mutants in one session of pytest: tests are collected once, and a mutant is a fork in which a function has other code.

This takes a tenth of a second where a new session takes seconds. Code that runs while files are imported has run by then, so
its mutants need a session of their own (`trial.py`).
"""

import ast
import gc
import io
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType, FunctionType

import pytest

from mutation.operators import Mutant
from mutation.trial import prepare

Spot = tuple[str, str, int]
"""(file, qualified name, first line) of a function."""


class Session:
    """A pytest plugin: once all tests are collected, `work` is called with this in place of running them."""

    def __init__(self, root: Path, work: Callable[["Session"], None]) -> None:
        self.root, self._work = root, work
        self._functions: dict[Spot, list[FunctionType]] = defaultdict(list)
        self._imported: set[Spot] = set()
        self._session: pytest.Session
        self._failed = ""

    def hold(self, files: list[str]) -> None:
        """Collect the tests of these files, then work."""
        prepare(self.root)
        told = io.StringIO()
        sys.settrace(self._trace)
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(told), redirect_stderr(told):
            words = [*files, "-s", "--tb=line", f"--rootdir={self.root}", f"--basetemp={folder}/tests"]
            code = pytest.main(words, plugins=[self])
        if code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise RuntimeError(f"the tests cannot be collected:\n{told.getvalue()}")

    def _trace(self, frame: FrameType, event: str, arg: object) -> None:
        """Note which functions run while files are imported."""
        self._imported.add(_spot(frame.f_code))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Work, in place of running the tests."""
        sys.settrace(None)
        self._session = session
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and one.__code__.co_filename.startswith(f"{self.root}/"):
                self._functions[_spot(one.__code__)].append(one)
        gc.collect()
        gc.freeze()  # a collection in a child would copy all of this memory
        self._work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the first that failed."""
        if report.failed and not self._failed:
            self._failed = report.nodeid

    def takes(self, mutant: Mutant, tree: ast.Module) -> bool:
        """Whether the function of a mutant can be given other code: it exists, and has not run yet."""
        spot, code = self._code(mutant, tree)
        found = self._functions.get(spot, [])
        return bool(found) and spot not in self._imported and all(one.__code__.co_freevars == code.co_freevars for one in found)

    def change(self, mutant: Mutant, tree: ast.Module) -> None:
        """In a fork: give the function of a mutant its other code."""
        spot, code = self._code(mutant, tree)
        for one in self._functions[spot]:
            one.__code__ = code

    def run(self, names: list[str]) -> tuple[int, str]:
        """In a fork: run these tests, without a word, until one fails."""
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        by_name = {item.nodeid: item for item in self._session.items}
        items = [by_name[name] for name in names if name in by_name]
        for item, following in zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                break
        return int(bool(self._failed)), f"FAILED {self._failed}"

    def _code(self, mutant: Mutant, tree: ast.Module) -> tuple[Spot, CodeType]:
        """The outermost function around a change, as it was defined and as it is compiled now."""
        name = mutant.place.partition(".<locals>.")[0]
        whole = compile(tree, str(self.root / mutant.path), "exec", dont_inherit=True)
        around = [code for code in _inner(whole) if code.co_qualname == name and code.co_firstlineno <= mutant.line]
        found = max(around, key=lambda code: code.co_firstlineno)  # a property's setter has the name of its getter
        return _spot(found), found


def _inner(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _inner(one)


def _spot(code: CodeType) -> Spot:
    return code.co_filename, code.co_qualname, code.co_firstlineno
