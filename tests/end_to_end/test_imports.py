"""The import rules of the design: an attack cannot reach data, and nothing points backwards."""

import ast
import re

import pytest

from helpers.paths import ROOT

OURS = {"fl_app", "strategies", "client_defenses", "adversary"}
# From the floor to the roof: a room may know only what is named here, and what is named lies above it.
CORE, STORE, MODELS, DATA = "fl_app.core", "fl_app.store", "fl_app.models", "fl_app.data"
EXPERIMENT, CLIENT, ENGINES, ATTACKING = "fl_app.experiment", "fl_app.client", "fl_app.engines", "fl_app.attacking"
CLUSTER = "fl_app.cluster"
SCORING, ANALYSIS, REPORT, SWEEPS = "fl_app.scoring", "fl_app.analysis", "fl_app.report", "fl_app.sweeps"
FLOOR = {CORE, STORE, MODELS, DATA, "client_defenses", "strategies"}
ALLOWED = {
    "fl_app/core": {CORE},
    "fl_app/store": {CORE, STORE},
    "fl_app/models": {CORE, MODELS},
    "fl_app/data": {CORE, STORE, DATA},
    "fl_app/cluster": {CORE, STORE, DATA, CLUSTER},
    "client_defenses": {CORE, "client_defenses"},
    "strategies": {CORE, "strategies"},
    "adversary": {CORE, STORE, MODELS, "adversary"},
    "adversary/informed": {CORE, STORE, MODELS, "adversary", "client_defenses"},
    "fl_app/experiment": FLOOR | {EXPERIMENT},
    # No attack, and of the strategies the client's half of a protocol alone: what runs at a client is what a client needs.
    "fl_app/client": {CORE, STORE, MODELS, DATA, EXPERIMENT, CLIENT, "client_defenses", "strategies"},
    "fl_app/client_app.py": {CORE, STORE, MODELS, DATA, EXPERIMENT, CLIENT, "client_defenses"},
    "fl_app/engines": FLOOR | {CLUSTER, EXPERIMENT, CLIENT, "fl_app.client_app", ENGINES},
    "fl_app/attacking": FLOOR | {CLUSTER, EXPERIMENT, "adversary", ATTACKING},
    "fl_app/scoring": {CORE, STORE, MODELS, DATA, EXPERIMENT, "client_defenses", SCORING},
    "fl_app/analysis": {CORE, STORE, EXPERIMENT, "client_defenses", "adversary", ATTACKING, SCORING, ANALYSIS},
    "fl_app/report": {CORE, STORE, EXPERIMENT, SCORING, ANALYSIS, REPORT},
    "fl_app/sweeps": FLOOR | {CLUSTER, EXPERIMENT, ENGINES, "adversary", ATTACKING, SCORING, ANALYSIS, REPORT, SWEEPS},
    "fl_app/server_app.py": {ENGINES, ATTACKING},
}


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            assert node.level == 0, f"{path}: imports are absolute here"
            # `from fl_app.core import spec` imports fl_app.core.spec if there is such a module
            if module.partition(".")[0] in OURS and (ROOT / module.replace(".", "/")).is_dir():
                for alias in node.names:
                    inner = ROOT / module.replace(".", "/") / alias.name
                    yield f"{module}.{alias.name}" if inner.with_suffix(".py").exists() or inner.is_dir() else module
            else:
                yield module


def files(place):
    path = ROOT / place
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


@pytest.mark.parametrize("place", ALLOWED)
def test_imports_go_one_way(place):
    inner = [ROOT / other for other in ALLOWED if other.startswith(f"{place}/")]
    for path in [path for path in files(place) if not any(path.is_relative_to(room) for room in inner)]:
        for name in imports_of(path):
            if name.partition(".")[0] in OURS:
                allowed = any(name == base or name.startswith(f"{base}.") for base in ALLOWED[place])
                assert allowed, f"{path.relative_to(ROOT)} must not import {name}"


def test_the_page_shows_these_arrows():
    page = (ROOT / "docs" / "architecture.md").read_text()
    shown = {}
    for room, names in re.findall(
        r"^\| `((?:fl_app|adversary|client_defenses|strategies)[^`]*)` \| (nothing|`.*`) \|$", page, re.M
    ):
        known = re.findall(r"`([a-z_]+)`", names)
        shown[room] = {name if name in OURS else f"fl_app.{name}" for name in known}
    itself = {room: room.replace("/", ".").removesuffix(".py") for room in ALLOWED}
    assert shown == {room: allowed - {itself[room]} for room, allowed in ALLOWED.items()}


def test_only_scoring_grants_and_bounds_reach_the_truth():
    for path in [p for place in OURS for p in files(place)]:
        judges = any(path.is_relative_to(ROOT / "fl_app" / room) for room in ("scoring", "analysis/bounds"))
        if judges or path.name in ("truth.py", "grants.py", "attacking.py"):
            continue
        assert not any(name.startswith("fl_app.experiment.truth") for name in imports_of(path)), path


def test_the_rules_would_notice(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("from fl_app import data\nimport fl_app.experiment.truth\n")
    assert list(imports_of(bad)) == ["fl_app.data", "fl_app.experiment.truth"]


# Reads one registry package's weights, whose checksum is known, through an allow-list that reaches no function at all.
UNPICKLER = ROOT / "fl_app" / "scoring" / "numpy_unpickler.py"


def test_nothing_unpickles_or_evaluates():
    for path in [p for place in OURS for p in files(place)]:
        tree = ast.parse(path.read_text())
        assert path == UNPICKLER or "pickle" not in {name.partition(".")[0] for name in imports_of(path)}, path
        called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        assert not called & {"eval", "exec"}, path
