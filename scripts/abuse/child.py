"""A command in a process that is forked off a warm one: as alone as a new process, without its seconds of imports."""

import contextlib
import os
import shlex
import signal
import sys
import time
import traceback
from pathlib import Path

from abuse.case import Answer, Case

NOBODY = 65534
PATIENCE = 60.0
LOOK = 0.01


ENVIRONMENT = {
    "COLUMNS": "200",
    "CUDA_VISIBLE_DEVICES": "",
    "FLWR_TELEMETRY_ENABLED": "0",
    "NO_COLOR": "1",
    "OMP_NUM_THREADS": "1",
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",  # some CPUs announce AMX and lack it
    "RAY_USAGE_STATS_ENABLED": "0",
    "TERM": "dumb",
}


class Child:
    """A command at work in a folder; what it says is in files beside it."""

    def __init__(self, line: str, here: Path, case: Case) -> None:
        self.out, self.err = (here.with_name(f"{here.name}.{line.partition(' ')[0]}-{name}") for name in ("out", "err"))
        self.began, self.seconds = time.monotonic(), 0.0
        self.code: int | None = None
        self.pid = os.fork()
        if not self.pid:
            self._be(line, here, case)

    def _be(self, line: str, here: Path, case: Case) -> None:
        """What the child does, and never returns from."""
        code = 1
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, path in ((1, self.out), (2, self.err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(here)
            sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
            os.environ.update({**ENVIRONMENT, "THORNS_DATA": str(here / "cache"), "HOME": str(here), **dict(case.env)})
            os.environ.pop("THORNS_ALLOW", None)
            if case.as_user and not os.geteuid():
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            code = _typed(line)
        except BaseException:  # as the interpreter would end
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def ended(self) -> bool:
        """Whether it has ended, or was ended because nobody waits that long."""
        if self.code is None:
            self.seconds = time.monotonic() - self.began
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif self.seconds > PATIENCE:
                self.kill()
        return self.code is not None

    def send(self, number: int) -> None:
        """Send it a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def answer(self) -> Answer:
        """What it did."""
        assert self.code is not None
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in (self.out, self.err)]
        return Answer(self.code, *texts, self.seconds)


def _typed(line: str) -> int:
    """The exit code of a command line."""
    from fl_app.cli.main import main

    sys.argv = ["thorns", *shlex.split(line)]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
