"""Half precision where a CPU announces AMX: children that really die, and a cap that reaches those who need it."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from client_defenses import NoDefense
from fl_app.core import halfprecision
from fl_app.core.halfprecision import CAP, VALUE

AMX = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 avx512f amx_bf16 amx_tile\n\nprocessor\t: 1\n"
PLAIN = AMX.replace(" amx_bf16 amx_tile", "")
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
RAISES = "raise RuntimeError('could not create a primitive')"
DIES_WITHOUT_CAP = f"import os, signal\nif os.environ.get('{CAP}') != '{VALUE}': os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Pretends to be a machine: what it announces, and what becomes of a child that tries half precision on it."""
    monkeypatch.delenv(CAP, raising=False)
    monkeypatch.setenv("THORNS_DATA", str(tmp_path / "cache"))
    tried = tmp_path / "tried"

    def make(announced, code):
        (tmp_path / "cpuinfo").write_text(announced)
        monkeypatch.setattr(halfprecision, "CPUINFO", tmp_path / "cpuinfo")
        noted = f"from pathlib import Path\nwith Path({str(tried)!r}).open('a') as out: out.write('x')\n{code}"
        monkeypatch.setattr(halfprecision, "COMMAND", (sys.executable, "-c", noted))
        return lambda: len(tried.read_text()) if tried.exists() else 0

    return make


def test_the_injected_child_really_dies_as_on_such_a_cpu():
    done = subprocess.run([sys.executable, "-c", DIES], check=False)
    assert done.returncode == -signal.SIGILL


@pytest.mark.parametrize(
    ("code", "answer", "children"),
    [("", "works", 1), (DIES_WITHOUT_CAP, "capped", 2), (DIES, "broken", 2), (RAISES, "broken", 2)],
)
def test_the_probe_is_made_once_in_children(machine, code, answer, children):
    tries = machine(AMX, code)
    assert halfprecision.known() is None
    assert halfprecision.answer() == answer
    assert halfprecision.answer() == answer
    assert tries() == children  # the second answer came from the cache
    assert halfprecision.known() == answer


def test_a_child_that_hangs_counts_as_broken(machine, monkeypatch):
    monkeypatch.setattr(halfprecision, "SECONDS", 0.2)
    machine(AMX, "import time; time.sleep(30)")
    began = time.monotonic()
    assert halfprecision.answer() == "broken"
    assert time.monotonic() - began < 10


def test_without_amx_there_is_no_child_at_all(machine):
    tries = machine(PLAIN, DIES)
    assert halfprecision.answer() == "works"
    halfprecision.cap_if_known()
    halfprecision.require([torch.zeros(2, dtype=torch.bfloat16)])
    assert tries() == 0
    assert CAP not in os.environ


def test_the_real_layers_are_tried(machine, monkeypatch):
    command = halfprecision.COMMAND
    machine(AMX, "")
    monkeypatch.setattr(halfprecision, "COMMAND", command)
    assert halfprecision.probe() in ("works", "capped")  # "broken" would be a mistake in the code that is tried


@pytest.mark.parametrize(
    ("code", "said"), [(DIES_WITHOUT_CAP, f"set {CAP}={VALUE} before Python starts"), (DIES, "use float32")]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_backward_in_half_precision_is_refused_in_one_line(machine, code, said, dtype):
    tries = machine(AMX, code)
    model, x, y = nn.Linear(4, 2), torch.rand(3, 4), torch.arange(3) % 2
    NoDefense().backward(model, x, y)
    assert tries() == 0  # nobody asked for half precision
    with pytest.raises(RuntimeError, match=said) as caught:
        NoDefense().backward(model.to(dtype), x.to(dtype), y)
    assert "\n" not in str(caught.value)


def test_who_sets_a_cap_has_decided(machine, monkeypatch):
    tries = machine(AMX, DIES)
    monkeypatch.setenv(CAP, "ALL")
    halfprecision.require([torch.zeros(2, dtype=torch.float16)])
    halfprecision.cap_if_known()
    assert tries() == 0
    assert os.environ[CAP] == "ALL"


def test_the_command_line_sets_the_cap_once_it_is_known(machine):
    machine(AMX, DIES_WITHOUT_CAP)
    halfprecision.cap_if_known()
    assert CAP not in os.environ  # no probe unless half precision is asked for
    assert halfprecision.answer() == "capped"
    halfprecision.cap_if_known()
    assert os.environ.pop(CAP) == VALUE


def test_the_cap_comes_before_torch(machine, tmp_path):
    machine(AMX, DIES_WITHOUT_CAP)
    halfprecision.answer()
    code = f"""
import sys
from pathlib import Path
from fl_app.core import halfprecision
halfprecision.CPUINFO = Path({str(tmp_path / "cpuinfo")!r})
import fl_app.cli.main as cli
real = halfprecision.cap_if_known
def watched():
    assert 'torch' not in sys.modules
    real()
halfprecision.cap_if_known = watched
sys.argv = ['thorns', 'doctor']
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert f"{CAP}={VALUE} is set" in done.stdout, done.stderr


def test_a_damaged_cache_is_asked_again(machine, tmp_path):
    tries = machine(AMX, "")
    assert halfprecision.answer() == "works"
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(b"\xff\xfe")
    assert halfprecision.answer() == "works"
    assert tries() == 2


def test_the_tests_themselves_are_capped_and_their_children_too():
    done = subprocess.run(
        [sys.executable, "-c", f"import os; print(os.environ['{CAP}'])"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == os.environ[CAP]
