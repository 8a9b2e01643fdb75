"""What tests make stays out of the user's folders, and what they download is kept there."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fl_app import data
from fl_app.core.places import cache_dir
from helpers import own_places
from helpers.engines import go
from helpers.paths import ROOT

LEAVES = """
import os
from fl_app.core.places import cache_dir

def test_it():
    {before}
    cache_dir().mkdir(parents=True, exist_ok=True)
    (cache_dir() / "{name}").write_text("made by a test")
"""


def test_a_run_on_pictures_leaves_nothing_in_the_users_cache(small):
    key = data.recipe_of(small.dataset).key
    go(small)
    assert (cache_dir() / f"{key}.safetensors").exists()
    assert not list((Path.home() / ".cache" / "thorns").glob(f"{key}*"))


@pytest.fixture
def session(tmp_path):
    """Runs a test in a session of its own, whose user has nothing but `mnist.safetensors`; (exit code, output, the cache)."""
    theirs = tmp_path / "user" / "thorns"
    theirs.mkdir(parents=True)
    (theirs / "mnist.safetensors").write_text("downloaded before")
    unset = ("THORNS_DATA", "XDG_STATE_HOME", "PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS")

    def start(name, before="pass"):
        (tmp_path / "test_it.py").write_text(LEAVES.format(before=before, name=name))
        env = {key: value for key, value in os.environ.items() if key not in unset}
        env |= {"XDG_CACHE_HOME": str(theirs.parent), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
        command = [sys.executable, "-m", "pytest", "-p", "helpers.own_places", "-p", "no:cacheprovider", "test_it.py"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr, {path.name: path.read_text() for path in theirs.iterdir()}

    return start


def test_downloads_are_shared_and_nothing_else_is(session):
    there = {"mnist.safetensors": "downloaded before"}
    check = "assert (cache_dir() / 'mnist.safetensors').read_text() == 'downloaded before'"
    assert session("imagefolder-1.safetensors", before=check)[::2] == (0, there)
    assert session("lpips-alex.safetensors")[::2] == (0, there | {"lpips-alex.safetensors": "made by a test"})


def test_what_a_test_leaves_in_the_users_cache_fails_the_session(session):
    code, said, there = session("imagefolder-1.safetensors", before="del os.environ['THORNS_DATA']")
    assert code == 1
    assert "1 passed" in said
    assert "ERROR: the tests left in the user's folders: user-cache/thorns/imagefolder-1.safetensors" in said
    assert list(there) == ["mnist.safetensors"]


def test_what_a_killed_session_left_goes_with_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    names = [f"{own_places.PREFIX}{number}-x" for number in (ended.pid, os.getpid(), "other")]
    for name in names:
        (tmp_path / name / "cache").mkdir(parents=True)
    own_places.tidy()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])
