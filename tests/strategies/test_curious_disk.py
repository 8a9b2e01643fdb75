"""The hook on a full disk: captures are lost, nothing else is."""

import errno
import logging
import os
import subprocess
import sys

import pytest

from helpers.engines import captures_of, go, same, weights_of


@pytest.mark.parametrize("when", ["write", "open", "mkdir"])
def test_a_full_disk_costs_captures_and_nothing_else(small, tmp_path, monkeypatch, caplog, when):
    plain = weights_of(go(small.changed(run_dir=str(tmp_path / "plain"))))
    real, calls = getattr(os, when), []

    def full(target, *rest, **named):
        place = str(target) if when != "write" else os.readlink(f"/proc/self/fd/{target}")
        if "captures" in place:
            calls.append(place)
            if 2 <= len(calls) <= 9:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(target, *rest, **named)

    monkeypatch.setattr(os, when, full)
    with caplog.at_level(logging.WARNING):
        run = go(small.changed(capture="all", run_dir=str(tmp_path / "full")))
    monkeypatch.undo()
    assert same(weights_of(run), plain)
    warnings = [record.message for record in caplog.records if "no space left" in record.message]
    assert len(warnings) == 1
    assert "captures/round-000" in warnings[0]
    assert len(calls) > 9
    seen = captures_of(run)
    assert 0 < len(seen) < 18
    assert {one.server_round for one in seen} >= {5, 6}
    assert not [path for path in run.path.rglob("*") if path.name.endswith(".part")]


LIMITED = """
import logging, resource, sys
from pathlib import Path
from fl_app import engines
from fl_app.experiment.config import from_run_config, read_toml
from fl_app.engines.watcher import Watcher
experiment = from_run_config(read_toml(Path(sys.argv[1])))
logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
import strategies.curious
engines.run(experiment, "inline", Watcher())
"""


def test_a_real_limit_on_files_leaves_nothing_half_written(small, tmp_path):
    """The kernel itself refuses what is longer than the checkpoint: an update has a longer header than the weights."""
    plain = go(small.changed(run_dir=str(tmp_path / "plain"), capture="1"))
    model = plain.path / "captures" / "round-0001" / "model.safetensors"
    limit = (model.stat().st_size + (model.parent / "client-00.safetensors").stat().st_size) // 2
    limited = small.changed(run_dir=str(tmp_path / "limited"), capture="all", optimizer="sgd(lr=0.05)")
    whole = go(limited.changed(run_dir=str(tmp_path / "whole"), capture="none"))
    (tmp_path / "settings.toml").write_text(limited.toml())
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "settings.toml"), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("file too large") == 1
    assert "client-00.safetensors" in done.stdout
    captures = tmp_path / "limited" / "captures"
    assert {path.name for path in captures.rglob("*") if path.is_file()} == {"model.safetensors"}
    assert same(weights_of(whole), weights_of(type(whole)(tmp_path / "limited")))
