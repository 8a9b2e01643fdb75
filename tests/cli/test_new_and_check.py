"""`thorns new` writes what runs; `thorns check` says what is wrong with what was written."""

import subprocess
import sys
from pathlib import Path

import pytest

from fl_app.core import plugins
from helpers import plugged


@pytest.fixture
def own(outside, typed):
    """Makes a defense or attack of one's own in the current directory."""
    made = []

    def make(kind):
        made.append(f"own_{kind}")
        done = typed("new", kind, made[-1])
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"wrote {made[-1]}.py and test_{made[-1]}.py")
        return made[-1]

    yield make
    for name in made:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("kind", "made"), [("defense", "OwnDefense"), ("attack", "OwnAttack")])
def test_what_is_written_passes_its_own_test_and_the_check(kind, made, own, typed):
    name = own(kind)
    written = Path(f"{name}.py").read_text() + Path(f"test_{name}.py").read_text()
    assert "my" not in written.lower()
    tested = subprocess.run([sys.executable, "-m", "pytest", "-q"], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout
    checked = typed("check", f"{name}:{made}")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "FAILED" not in checked.stdout
    for words in (["check", "--select", "E,F,I,W,B"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *words, "--isolated", "--line-length", "128", "."]
        linted = subprocess.run(command, capture_output=True, text=True, check=False)
        assert linted.returncode == 0, linted.stdout


def test_nothing_is_overwritten_or_hidden(tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    Path("test_mine.py").write_text("mine")
    for words, said in (
        (["new", "defense", "mine"], "test_mine.py is there already"),
        (["new", "defense", "json"], "there is a module json already"),
        (["new", "attack", "torch"], "there is a module torch already"),
        (["new", "defense", "../up"], "cannot be the name of a module"),
        (["new", "defense", "Class"], "cannot be the name of a module"),
        (["new", "attack", "import"], "cannot be the name of a module"),
    ):
        done = typed(*words)
        assert done.returncode == 2
        assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]
    assert Path("test_mine.py").read_text() == "mine"


SLOPPY = """
from dataclasses import dataclass

import torch
from client_defenses import Defense


@dataclass(frozen=True, kw_only=True)
class Sloppy(Defense):
    def transform(self, grads, memory):
        return {name: (value + torch.randn(value.shape)).float() for name, value in grads.items()}
"""


def test_a_broken_contract_is_one_line_and_exit_code_1(outside, typed):
    done = typed("check", f"{outside(SLOPPY)}:Sloppy")
    assert done.returncode == 1
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert [line.split()[1] for line in failed] == ["seeded:", "memory_survives:", "types_stay:", "chained:"]
    assert "take every draw from memory.rng" in failed[0]
    assert "4 of 9 contracts are broken" in done.stdout


def test_registered_names_can_be_checked_and_misspelt(typed):
    assert typed("check", "sign").returncode == 0
    wrong = typed("check", "sing")
    assert wrong.returncode == 2
    assert "did you mean 'sign'" in wrong.stderr


def test_what_packages_register_is_listed_with_their_names(outside, package, typed):
    defenses = "[thorns.defenses]\nhalve = halving:Halve\nprune = halving:Halve\nlost = halving:Lost\n"
    package("halving", f"{defenses}[thorns.attacks]\nx = halving:X\n", plugged.DEFENSE)
    shown = typed("list", "defenses").stdout
    assert "halve (from the package halving): factor=0.5; Sends a part of the gradient." in shown
    assert "prune (from the package halving): not used: one of ours has that name" in shown
    assert "lost (from the package halving): the defense lost cannot be used: AttributeError" in shown
    assert "x (from the package halving)" in typed("list", "attacks").stdout
    assert "from the package" not in typed("list", "models").stdout
    assert plugins.packages("model", "halve") == []
