"""Commands in processes that are forked off one that has imported everything: as alone as new ones, without seconds of imports.

As a program: reads an order per line, {words, cwd, env, out, err}, and answers with the exit code of `thorns`.
"""

import json
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 120


def next_order():
    """Fork for each order that comes in; returns in the children alone, which end as any interpreter does."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()


def become(order):
    """The process that was asked for: its folder, environment, files and words."""
    signal.alarm(PATIENCE)
    for number, path in enumerate((os.devnull, order["out"], order["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.path[0] = str(Path(sys.executable).parent)  # as for the script `thorns`
    sys.argv = ["thorns", *order["words"]]


if __name__ == "__main__":
    sys.path[0] = str(ROOT / "scripts")
    for name in import_module("hostile").WARM:
        with suppress(ImportError):  # of deployments: not with every version of Flower
            import_module(name)
    become(next_order())
    sys.exit(import_module("fl_app.cli.main").main())
