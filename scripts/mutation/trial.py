"""Tests run in a forked process: all libraries are imported already, nothing of ours is."""

import ast
import gc
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SPARE = 5  # seconds beyond three times what the tests took when they were recorded
WALL = 60  # seconds until a mutant that waits and does not compute is given up, beside those that it may compute


class Hook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed syntax tree; files stay as they are."""

    def __init__(self, file: Path, name: str, tree: ast.Module) -> None:
        self.file, self.name, self.tree = file, name, tree

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Only of this module."""
        if name != self.name:
            return None
        is_package = self.file.name == "__init__.py"
        spec = importlib.machinery.ModuleSpec(name, self, origin=str(self.file), is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [str(self.file.parent)]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed code."""
        with warnings.catch_warnings(action="ignore"):
            code = compile(self.tree, str(self.file), "exec")
        exec(code, module.__dict__)


class Order:
    """A pytest plugin that keeps these tests, in this order."""

    def __init__(self, names: list[str]) -> None:
        self.names = {name: place for place, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out all others."""
        items[:] = sorted((item for item in items if item.nodeid in self.names), key=lambda item: self.names[item.nodeid])


def module_name(path: str) -> str:
    """How a file is imported."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def prepare(root: Path) -> None:
    """Let this process import the checkout and its tests."""
    os.chdir(root)
    sys.path[:0] = [str(root), str(root / "tests")]


def run_tests(root: Path, files: list[str], *plugins: object, hook: Hook | None = None) -> tuple[int, str]:
    """Pytest in this process: its exit code and what it said."""
    prepare(root)
    if hook:
        assert hook.name not in sys.modules, "imported before it was changed"
        sys.meta_path.insert(0, hook)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        told = io.StringIO()
        words = [*files, "-x", "--tb=line", f"--rootdir={root}", f"--basetemp={folder}/tests"]
        if not hook:
            words.remove("-x")
        with redirect_stdout(told), redirect_stderr(told):
            code = pytest.main(words, plugins=list(plugins))
    return int(code), told.getvalue()


def forked(work: Callable[[], Any], cpu: float | None = None) -> Any:
    """The answer of a function that ran in a process of its own; None if that took too long or died."""
    with tempfile.NamedTemporaryFile("w+") as answer:
        child = os.fork()
        if not child:
            try:
                os.setsid()
                if cpu:
                    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu), int(cpu) + 5))
                json.dump(work(), answer)
                answer.flush()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        end = time.monotonic() + (WALL + cpu if cpu else math.inf)
        while not os.waitpid(child, os.WNOHANG)[0]:
            time.sleep(0.02)
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
        with suppress(ProcessLookupError):  # what the tests left behind
            os.killpg(child, signal.SIGKILL)
        text = Path(answer.name).read_text()
    return json.loads(text) if text else None


def libraries(root: Path) -> list[str]:
    """The modules imported by now that do not lie in the checkout."""
    places = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
    return [name for name, file in places.items() if not file.startswith(f"{root}/") or file.startswith(f"{root}/.venv/")]


def forget(root: Path) -> None:
    """Let the checkout's modules be imported anew."""
    for name in sys.modules.keys() - set(libraries(root)):
        if not name.startswith("mutation") and name != "__main__":
            del sys.modules[name]


def warm(names: Iterable[str]) -> None:
    """Import libraries once for all children."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:
            continue  # then it is imported when it is needed
    gc.collect()
    gc.freeze()  # a collection in a child would copy all of this memory
