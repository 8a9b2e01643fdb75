"""docs/architecture.md: each thing that it adds, as files and commands, is added and used as it says."""

import csv
import importlib
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from fl_app.experiment import candidates
from helpers.documents import blocks_of, commands_in, files_of
from helpers.paths import ROOT

PAGE = ROOT / "docs" / "architecture.md"
BLOCKS = blocks_of(PAGE)


@pytest.fixture
def done(tmp_path, monkeypatch, typed):
    """Does what a section says in an empty folder: writes its files, types its commands; the folder, and what was said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(candidates, "PUBLIC", 200)  # trained attackers take a quarter of a minute for all
    files = files_of(PAGE)

    def do(section):
        said = []
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        asked = commands(section)
        first = commands("Adding things") if any("runs/one" in words for words in asked) else []
        for words in [*first, *asked]:
            result = typed(*words)
            assert result.returncode == 0, (words, result.stdout, result.stderr)
            said.append(result.stdout)
        return tmp_path, said

    yield do
    for name in files:
        sys.modules.pop(name.removesuffix(".py"), None)


def commands(section):
    blocks = [block for block in BLOCKS if block.section == section and block.language == "bash"]
    return [words for block in blocks for words in commands_in(block.text, "thorns")]


def scores(run, column="psnr"):
    """Who attacked -> a column of the targets."""
    found = {}
    for path in run.glob("attacks/*/scores.jsonl"):
        about = json.loads((path.parent / "attack.json").read_text())
        found[about["who"]] = [json.loads(line).get(column) for line in path.read_text().splitlines()]
    return found


def accuracy(run):
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"]


def test_a_defense(done):
    folder, said = done("Add a defense")
    assert "expectation" in said[0]  # of `thorns check`
    found = scores(folder / "runs" / "clipped")
    assert found.keys() >= {"naive", "informed: expected", "informed: noise-proof"}
    assert sum(found["informed: expected"]) > sum(found["naive"]) + 3 * 3  # 3 dB per target
    update = load_file(folder / "runs/clipped/captures/round-0001/client-00.safetensors")
    assert max(value.abs().max() for name, value in update.items() if name.startswith("update/")) == pytest.approx(0.05)


def test_an_informed_attacker(done):
    folder, _ = done("Add an informed attacker")
    found = scores(folder / "runs" / "flip")
    assert found.keys() >= {"naive", "informed: unflipped"}
    assert sum(found["informed: unflipped"]) > sum(found["naive"]) + 3 * 3  # 3 dB per target


def test_an_attack(done):
    folder, _ = done("Add an attack")
    assert all(value > 60 for value in scores(folder / "runs" / "one")["attack"])  # exact but for rounding


@pytest.mark.parametrize("piece", ["an objective", "a prior", "a parametrisation"])
def test_a_piece_of_an_attack(done, piece):
    folder, _ = done(f"Add {piece}")
    values = scores(folder / "runs" / "one")["attack"]
    assert len(values) == 3
    assert all(value > 5 for value in values)


def test_a_model(done):
    folder, _ = done("Add a model")
    kept = load_file(folder / "runs" / "net" / "checkpoint.safetensors")
    assert (2, 1, 3, 3) in {tuple(value.shape) for value in kept.values()}
    assert accuracy(folder / "runs" / "net") > 0.05


def test_a_data_set(done, monkeypatch, tmp_path):
    monkeypatch.setenv("THORNS_DATA", str(tmp_path / "cache"))
    folder, _ = done("Add a data set")
    assert accuracy(folder / "runs" / "stripes") == 1
    assert (tmp_path / "cache" / "stripes-6.safetensors").exists()


def test_a_metric(done):
    folder, _ = done("Add a metric")
    assert all(value < 0.01 for value in scores(folder / "runs" / "one", "absolute")["attack"])
    with (folder / "targets.csv").open() as lines:
        assert all(float(row["absolute"]) < 0.01 for row in csv.DictReader(lines))


def test_an_engine(tmp_path, monkeypatch, typed):
    (diff,) = [block.text for block in BLOCKS if block.section == "Add an engine" and block.language == "diff"]
    for package in ("fl_app", "strategies", "client_defenses", "adversary"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=diff, text=True, check=True)
    (words,) = commands("Add an engine")
    call, env = [sys.executable, "-m", "fl_app.cli.main", *words], {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200"}
    changed = subprocess.run(call, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert changed.returncode == 0, changed.stderr
    assert "engine backwards" in changed.stdout
    monkeypatch.chdir(tmp_path)
    assert typed(*[word.replace("backwards", "inline") for word in words]).returncode == 0
    one, other = (load_file(tmp_path / "runs" / name / "checkpoint.safetensors") for name in ("backwards", "inline"))
    assert one.keys() == other.keys()
    assert all(value.equal(other[name]) for name, value in one.items())


def test_every_section_is_done():
    sections = {block.section for block in BLOCKS if block.section.startswith("Add ")}
    own = (ROOT / "tests" / "end_to_end" / "test_architecture.py").read_text()
    for section in sections:
        assert f'"{section}"' in own or f'"{section.removeprefix("Add ")}"' in own, section
    assert len(sections) == 10


def test_the_registries_are_where_the_page_says():
    named = re.findall(r"`((?:fl_app|adversary|client_defenses)[a-z_.]*)\.([A-Z]+)`", PAGE.read_text())
    assert len(named) >= 11
    for module, name in named:
        assert isinstance(getattr(importlib.import_module(module), name), dict), (module, name)
