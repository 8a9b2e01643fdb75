"""`thorns doctor`: what is there, what is missing, and when a run could not work."""

import os
import sys

import pytest
import typer

from fl_app.cli import doctor
from fl_app.core import halfprecision
from helpers.cli import thorns


def findings(check):
    return {one.what: one for one in check()}


def test_a_machine_that_runs_these_tests_is_healthy(tmp_path):
    done = thorns("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    for word in (
        "python",
        "thorns",
        "torch",
        "torchvision",
        "flwr",
        "ray",
        "cpu",
        "half precision",
        "gpu",
        "memory",
        "cache",
        "LPIPS",
    ):
        assert f" {word}" in done.stdout
    assert "broken" not in done.stdout
    assert not list(tmp_path.iterdir())


def test_an_empty_home_is_no_fault(tmp_path, monkeypatch):
    monkeypatch.setenv("THORNS_DATA", str(tmp_path / "new" / "cache"))
    assert findings(doctor.caches)["cache"].state == "ok"
    found = findings(doctor.data_at_hand)
    assert (found["data sets"].state, found["data sets"].advice) == ("note", "thorns data get mnist")
    assert found["LPIPS"].state == "note"
    assert not (tmp_path / "new").exists()


def test_a_cache_that_cannot_be_written_is_broken(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("THORNS_DATA", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(doctor, "CHECKS", (doctor.caches,))
    with pytest.raises(typer.Exit) as ended:
        doctor.doctor()
    assert ended.value.exit_code == 1
    assert "set THORNS_DATA to a folder that can" in capsys.readouterr().out


def test_a_package_that_cannot_be_imported_is_broken(tmp_path, monkeypatch):
    (tmp_path / "half_a_package.py").write_text("raise ImportError('libcuda.so.1: cannot open')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(doctor, "IMPORTED", {"torch": "half_a_package", "no-such-package": "x"})
    found = findings(doctor.versions)
    assert found["torch"].state == "broken"
    assert "libcuda.so.1: cannot open" in found["torch"].found
    assert found["no-such-package"].found == "not installed"


@pytest.mark.parametrize(
    ("code", "state", "said"),
    [
        ("", "ok", "works, tried in a child process"),
        (
            "import os, signal\nif 'ONEDNN_MAX_CPU_ISA' not in os.environ: os.kill(os.getpid(), signal.SIGILL)",
            "note",
            "cannot be used",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "note", "fails, also with ONEDNN_MAX_CPU_ISA=AVX512_CORE"),
    ],
)
def test_half_precision_is_tried_where_amx_is_announced(tmp_path, monkeypatch, code, state, said):
    monkeypatch.delenv(halfprecision.CAP)
    monkeypatch.setenv("THORNS_DATA", str(tmp_path))
    (tmp_path / "cpuinfo").write_text("model name : Some CPU\nflags : avx2 amx_tile amx_bf16\n\n")
    monkeypatch.setattr(halfprecision, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(halfprecision, "COMMAND", (sys.executable, "-c", code))
    found = findings(doctor.processor)
    assert "amx_tile" in found["cpu"].found
    half = found["half precision on the CPU"]
    assert (half.state, said in half.found) == (state, True)
    assert halfprecision.CAP not in os.environ
