"""The command line in a process of its own."""

import os
import subprocess
import sys

THORNS = [os.path.join(os.path.dirname(sys.executable), "thorns")]


def thorns(*words, cwd):
    env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run([*THORNS, *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


def settings_of(experiment, *more):
    words = []
    for key, value in [*experiment.run_config().items(), *more]:
        if key != "run-dir":
            words += ["-c", f"{key}={value}"]
    return words
