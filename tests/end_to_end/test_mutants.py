"""scripts/mutants.py: a wrong change that a test notices is caught, one that no test notices is named."""

import subprocess
import sys
import tomllib

import pytest

from helpers.paths import ROOT

CODE = """def least(a, b):
    if a < 0:
        raise ValueError(f"not {a}")
    return a if a < b else b


def unseen(a):
    return a + 1


def made():
    return 5


MADE, KEPT = made(), 7  # while the file is imported
"""
WEAK = """from planted.part import least


def test_least():
    assert least(1, 2) == 1
"""
STRONG = """import pytest

from planted.part import KEPT, MADE, least, made, unseen


def test_least():
    assert (least(1, 2), least(2, 1), least(0, 5), unseen(1)) == (1, 1, 0, 2)
    for refused in (-1, -0.5):
        with pytest.raises(ValueError, match="not"):
            least(refused, 1)
    assert (MADE, KEPT, made() > 4) == (5, 7, True)
"""


@pytest.fixture
def mutants(tmp_path):
    """Runs the script on a planted package with these tests."""
    part = tmp_path / "planted" / "part.py"
    tests = tmp_path / "tests" / "planted" / "test_part.py"
    for file in (part, tests):
        file.parent.mkdir(parents=True)
    part.write_text(CODE)

    def run(text):
        tests.write_text(text)
        words = ["--root", str(tmp_path), "--packages", "planted", "--tests", "planted", "--sample", "0"]
        done = subprocess.run([sys.executable, ROOT / "scripts" / "mutants.py", *words], capture_output=True, text=True)
        assert not done.stderr
        assert part.read_text() == CODE
        return done.returncode, done.stdout

    return run


def test_mutants_that_no_test_notices_are_named_until_one_does(mutants):
    code, told = mutants(WEAK)
    assert code == 1
    assert "planted/part.py:4 least: a < b -> a <= b [1 tests passed]" in told
    assert "planted/part.py:3 least: raise ValueError(f'not {a}') -> pass [1 tests passed]" in told
    assert "planted/part.py:8 unseen: a + 1 -> a - 1 [no fast test runs this]" in told
    assert "least: a < b -> a >= b" not in told  # this one is caught

    code, told = mutants(STRONG)  # the file has changed, so it is recorded anew
    survived = [line.split(" s  ")[1] for line in told.splitlines() if " planted/part.py:" in line]
    assert survived == ["planted/part.py:4 least: a < b -> a <= b [1 tests passed]"]  # of equal numbers any is the least
    assert code == 1  # one of so few is more than 5 %


def test_what_is_listed_as_equivalent_is_still_a_mutant():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from mutation.operators import mutants_of
    finally:
        sys.path.pop(0)
    listed = tomllib.loads((ROOT / "scripts" / "mutation" / "equivalent.toml").read_text())
    stale = {path: listed[path].keys() - {mutant.name for mutant in mutants_of(ROOT, path)} for path in listed}
    assert not {path: names for path, names in stale.items() if names}
