import os
import sys
from typing import NamedTuple

import pytest

from fl_app.cli.main import main


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def typed(monkeypatch, capsys):
    """What a command line does, in this process but as if it were a new one: nothing is allowed, and cwd not on the path."""
    monkeypatch.setenv("THORNS_DEBUG", "")
    monkeypatch.setenv("THORNS_ALLOW", "")

    def start(*words, allow=""):
        monkeypatch.setattr(sys, "argv", ["thorns", *words])
        os.environ["THORNS_ALLOW"] = allow
        capsys.readouterr()
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        else:
            code = 0
        return Done(code, *capsys.readouterr())

    return start
