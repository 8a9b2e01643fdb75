import io
import os
import signal
import sys
from typing import NamedTuple

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Some CPUs announce AMX that their hypervisor keeps from them: half precision then dies. Before torch is imported, and for
# child processes and Ray workers too; ONEDNN_MAX_CPU_ISA=ALL tests without the cap.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
os.environ.pop("THORNS_ALLOW", None)  # tests allow what they need
# Test processes share the cores: threads that spin while they wait slow each other down by large factors.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
# Ray's workers are nice by 15: on a busy machine they starve until something times out.
os.environ.setdefault("RAY_worker_niceness", "0")

import numpy as np
import pytest
import torch
import typer
from flwr.supercore.task_identity import TaskIdentity
from PIL import Image
from rich.console import Console

from fl_app.cli.main import main
from fl_app.core import plugins
from fl_app.experiment.config import Experiment
from helpers import foreign_app, plugged
from helpers.own_places import pytest_configure, pytest_sessionfinish  # noqa: F401  (hooks)
from helpers.small_sweep import text_of

# In the background of a shell Ctrl-C is ignored, and children inherit that: tests that send it would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch):
    """What one test allows is not allowed in the next."""
    monkeypatch.setenv("THORNS_ALLOW", "")


@pytest.fixture
def identity():
    """What Flower's Message takes its sender from."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(7)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A folder of small class folders: a data set that any test can afford."""
    root = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for label, name in enumerate(("apple", "berry", "cherry")):
        for split, number in (("train", 40), ("test", 10)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(number):
                pixels = draw.integers(0, 100, (12, 12, 3), dtype=np.uint8)
                pixels[..., label] += 120
                Image.fromarray(pixels).save(folder / f"{i:02d}.png")
    return root


@pytest.fixture
def small(pictures, tmp_path):
    """A tiny experiment on the pictures."""
    return Experiment(
        dataset=f"imagefolder(path='{pictures}', size=12)",
        model="lenet",
        clients=3,
        batch_size=4,
        rounds=6,
        eval_every=3,
        run_dir=str(tmp_path / "run"),
    )


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Writes a module into the current directory, from where it can be plugged in; nothing is allowed yet.

    It leaves a file `imported` when it is imported.
    """
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("THORNS_ALLOW", "")
    names = []

    def write(text=plugged.DEFENSE):
        names.append(f"outside_{tmp_path.name.rpartition('_')[2]}_{os.getpid()}_{len(names)}_{len(tmp_path.name)}")
        (here / f"{names[-1]}.py").write_text(plugged.TRACE + text)
        return names[-1]

    yield write
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs a package that registers entry points, as pip would."""

    def install(name, points, code=""):
        site = tmp_path / f"site-{name}"
        about = site / f"{name}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(points)
        (site / f"{name}.py").write_text(plugged.TRACE + code)
        sys.path.append(str(site))
        plugins.registered.cache_clear()
        monkeypatch.delitem(sys.modules, name, raising=False)

    yield install
    plugins.registered.cache_clear()


@pytest.fixture
def grads(rng):
    """A matrix that is not contiguous, a vector, a number and nothing."""
    return {
        "matrix": torch.randn(40, 30, generator=rng).t(),
        "vector": 5 * torch.randn(101, generator=rng),
        "number": torch.randn((), generator=rng),
        "nothing": torch.zeros(0, 3),
    }


@pytest.fixture
def file(pictures, tmp_path):
    """Writes a sweep file into a folder of its own."""

    def write(rounds=4, name="small"):
        path = tmp_path / f"{name}.toml"
        path.write_text(text_of(pictures, seeds=[0], attack="idlg(iterations=2, restarts=1)", rounds=rounds))
        return path

    return write


@pytest.fixture
def sweep(monkeypatch, tmp_path):
    """Runs `thorns sweep` in this process, without its report; (exit code, what it said)."""
    from fl_app.sweeps import command

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_report", lambda *_: None)

    def start(path, out=None, workers=1, dry_run=False):
        told = io.StringIO()
        try:
            command.sweep(Console(file=told, width=200), path, out, workers, dry_run=dry_run)
        except typer.Exit as end:
            return end.exit_code, told.getvalue()
        return 0, told.getvalue()

    return start


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """The folder of somebody's code, as the current directory."""
    (tmp_path / f"{foreign_app.MODULE}.py").write_text(foreign_app.CODE)
    monkeypatch.chdir(tmp_path)
    sys.modules.pop(foreign_app.MODULE, None)
    yield tmp_path
    sys.modules.pop(foreign_app.MODULE, None)


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def typed(monkeypatch, capsys):
    """What a command line does, in this process but as if it were a new one: nothing is allowed, and cwd not on the path."""
    monkeypatch.setenv("THORNS_DEBUG", "")
    monkeypatch.setenv("THORNS_ALLOW", "")

    def start(*words, allow=""):
        monkeypatch.setattr(sys, "argv", ["thorns", *words])
        os.environ["THORNS_ALLOW"] = allow
        capsys.readouterr()
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        else:
            code = 0
        return Done(code, *capsys.readouterr())

    return start
