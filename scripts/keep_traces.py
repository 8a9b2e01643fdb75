#!/usr/bin/env python
"""Keep anew what the functions of the project give back (tests/golden/traces), after a change that is meant.

    .venv/bin/python scripts/keep_traces.py

Runs the tests of traces several times: in other orders, on other numbers of threads, with the instructions of other machines.
What differs between these runs is kept as "-" and not compared, so that a test does not depend on the machine that kept it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from helpers import traces  # noqa: E402

FILES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*_traces.py"))
BEFORE = ["tests/core/test_spec.py", "tests/adversary/test_settings.py", "tests/client_defenses/test_defaults.py"]
"""Tests that fill caches first."""
NEWER = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}
OLDER = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
RUNS: list[tuple[dict[str, str], list[str]]] = [
    ({"OMP_NUM_THREADS": "1"}, FILES),
    ({"OMP_NUM_THREADS": "2", **NEWER}, [*BEFORE, *FILES]),
    ({"OMP_NUM_THREADS": "2", **OLDER}, FILES[::-1]),
]


def main() -> int:
    """Run, compare, keep."""
    with tempfile.TemporaryDirectory() as folder:
        parts = [Path(folder) / str(number) for number in range(len(RUNS))]
        for part, (settings, files) in zip(parts, RUNS, strict=True):
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *dict.fromkeys(files)]
            if subprocess.run(
                command, cwd=ROOT, env={**os.environ, **settings, "KEEP_TRACES": str(part)}, check=False
            ).returncode:
                return 1
        shutil.rmtree(traces.FOLDER, ignore_errors=True)
        for path in sorted(parts[0].glob("*.txt")):
            traces.write(traces.FOLDER / path.name, traces.agreed([traces.read(part / path.name) for part in parts]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
