"""The import rules of the design: an attack cannot reach data, and nothing points backwards."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"fl_app", "strategies", "client_defenses", "adversary"}
BASE = {"fl_app.local", "fl_app.spec"}
ALLOWED = {
    "fl_app/local.py": set(),
    "fl_app/spec.py": set(),
    "fl_app/models": {"fl_app.local", "fl_app.spec", "fl_app.models", "fl_app.vision"},
    "client_defenses": {*BASE, "client_defenses"},
    # The one defense file that handles Flower's messages; what it reads them with reaches no data.
    "client_defenses/mods.py": {*BASE, "fl_app.seeds", "fl_app.wire", "client_defenses"},
    "adversary": {*BASE, "fl_app.models", "client_defenses", "adversary"},
    "strategies": {*BASE, "fl_app.seeds", "fl_app.wire", "client_defenses", "adversary", "strategies"},
}


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            assert node.level == 0, f"{path}: imports are absolute here"
            if module in OURS:  # `from fl_app import spec` imports fl_app.spec if there is such a module
                for alias in node.names:
                    inner = ROOT / module / alias.name
                    yield f"{module}.{alias.name}" if inner.with_suffix(".py").exists() or inner.is_dir() else module
            else:
                yield module


def files(place):
    path = ROOT / place
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


@pytest.mark.parametrize("place", ALLOWED)
def test_imports_go_one_way(place):
    own = {ROOT / other for other in ALLOWED if other != place}
    for path in [path for path in files(place) if path not in own]:
        for name in imports_of(path):
            if name.partition(".")[0] in OURS:
                allowed = any(name == base or name.startswith(f"{base}.") for base in ALLOWED[place])
                assert allowed, f"{path.relative_to(ROOT)} must not import {name}"


def test_only_scoring_and_grants_reach_the_truth():
    for path in [p for place in OURS for p in files(place)]:
        if path.is_relative_to(ROOT / "fl_app" / "scoring") or path.name in ("truth.py", "grants.py", "attacking.py"):
            continue
        assert not any(name.startswith("fl_app.truth") for name in imports_of(path)), path


def test_the_rules_would_notice(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("from fl_app import data\nimport fl_app.truth\n")
    assert list(imports_of(bad)) == ["fl_app.data", "fl_app.truth"]


# Reads one registry package's weights, whose checksum is known, through an allow-list that reaches no function at all.
UNPICKLER = ROOT / "fl_app" / "scoring" / "numpy_unpickler.py"


def test_nothing_unpickles_or_evaluates():
    for path in [p for place in OURS for p in files(place)]:
        tree = ast.parse(path.read_text())
        assert path == UNPICKLER or "pickle" not in {name.partition(".")[0] for name in imports_of(path)}, path
        called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        assert not called & {"eval", "exec"}, path
