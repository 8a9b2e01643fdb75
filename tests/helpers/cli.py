"""The command line in a process of its own."""

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from helpers import warm

THORNS = [os.path.join(os.path.dirname(sys.executable), "thorns")]
PLAIN = {"COLUMNS": "200", "NO_COLOR": "1"}
BEGINNING = {**os.environ, **PLAIN}  # before any test changes it


@cache
def _server():
    """Of this test process; it ends with its input."""
    words = [sys.executable, warm.__file__]
    return subprocess.Popen(words, cwd=warm.ROOT, env=BEGINNING, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def thorns(*words, cwd):
    """What `thorns` says and its exit code, in a process that is forked off a warm one."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        order = {"words": words, "cwd": str(cwd), "env": {**os.environ, **PLAIN}, "out": str(out), "err": str(err)}
        server = _server()
        print(json.dumps(order), file=server.stdin, flush=True)
        return subprocess.CompletedProcess(words, int(server.stdout.readline()), out.read_text(), err.read_text())


def settings_of(experiment, *more):
    words = []
    for key, value in [*experiment.run_config().items(), *more]:
        if key != "run-dir":
            words += ["-c", f"{key}={value}"]
    return words
