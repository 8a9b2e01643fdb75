"""Tests keep what they make in places of their own; what they download is shared with the user's cache.

A pytest plugin that needs nothing else of the tests, so that a test can try it alone.
"""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from fl_app.core.places import cache_dir

DOWNLOADS = ("mnist.safetensors", "lpips-*.safetensors")
PLACES = pytest.StashKey["Places"]()
PREFIX = "thorns-tests-"


class Places:
    """A folder of this session: a cache that borrows downloads, and stand-ins for the user's folders that must stay empty."""

    def __init__(self):
        self.shared = cache_dir()
        self.root = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self.cache, self.user_cache, self.user_state = (self.root / name for name in ("cache", "user-cache", "user-state"))
        for folder in (self.cache, self.user_cache, self.user_state):
            folder.mkdir()
        for path in (*self.downloads(self.shared), *self.shared.glob("raw")):
            (self.cache / path.name).symlink_to(path.resolve())
        theirs = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        for path in theirs.glob("*"):  # of pip, matplotlib and others: rebuilding them would take time
            if path.name != "thorns":
                (self.user_cache / path.name).symlink_to(path.resolve())
        self.environment = {
            "THORNS_DATA": str(self.cache),
            "XDG_CACHE_HOME": str(self.user_cache),
            "XDG_STATE_HOME": str(self.user_state),
            "FLWR_HOME": str(self.root / "flwr"),
        }

    @staticmethod
    def downloads(folder):
        return [path for pattern in DOWNLOADS for path in folder.glob(pattern)]

    def share(self):
        """Keep what was downloaded for the next time."""
        for path in self.downloads(self.cache):
            if not path.is_symlink():
                self.shared.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=self.shared, prefix="fetch-") as scratch:
                    shutil.copy2(path, Path(scratch) / path.name).replace(self.shared / path.name)

    def left(self):
        """What would now lie in the user's folders."""
        return [str(path.relative_to(self.root)) for path in sorted(self.root.glob("user-*/thorns/**/*"))]


def tidy():
    """Remove what sessions left that were killed: their names say whose they were."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        try:
            os.kill(int(old.name.removeprefix(PREFIX).partition("-")[0]), 0)
        except ProcessLookupError:
            shutil.rmtree(old, ignore_errors=True)
        except (PermissionError, ValueError):
            pass  # somebody else's


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # workers of pytest-xdist inherit the environment
        tidy()
        config.stash[PLACES] = places = Places()
        os.environ.update(places.environment)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    places = session.config.stash.get(PLACES, None)
    if places is None:
        return
    places.share()
    left = places.left()
    shutil.rmtree(places.root, ignore_errors=True)
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        reporter.ensure_newline()
        reporter.write_line(f"ERROR: the tests left in the user's folders: {', '.join(left[:5])}", red=True)
