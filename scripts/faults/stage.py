"""A stage for faults: a deployment on loopback whose processes can be killed and restarted, and what its run should give."""

import json
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from faults import PLAN
from fl_app.client_app import app as honest_app
from fl_app.core.local import Tensors
from fl_app.engines.grpc.grid import AdaptiveGrid
from fl_app.engines.grpc.local import Deployment, Local, Wrap, deployment, serve_on
from fl_app.engines.inline import InlineGrid
from fl_app.engines.serving import serve
from fl_app.engines.watcher import Watcher
from fl_app.experiment.config import Experiment
from fl_app.store.runs import RunDir

PATIENCE = 150.0
COLOURS = re.compile(r"\x1b\[\d*m")
Plan = dict[int, dict[int, str]]
"""client -> round -> fault, see `apps.py`."""
Rounds = dict[int, set[int]]
"""round -> clients."""


class Row(NamedTuple):
    """One fault in the table."""

    fault: str
    expected: str
    seen: str
    line: str
    """What one log said."""
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it went as expected."""
        return self.seen == self.expected


class Lines(logging.Handler):
    """What our log said, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.said.append(record.getMessage())


class Between(Watcher):
    """Does things after rounds; what it does holds the run up."""

    def __init__(self, acts: dict[int, Callable[[], None]]) -> None:
        self.acts = acts
        self.ended: dict[float, float] = {0: time.monotonic()}
        """When rounds ended, and half a round later: when what was to be done after them was done."""

    def started(self, run: RunDir, experiment: Experiment, done: int) -> None:
        """Say nothing."""

    def on_round(self, line: dict[str, Any]) -> None:
        """Do what is to be done after this round."""
        number = line["round"]
        self.ended[number] = time.monotonic()
        self.acts.get(number, lambda: None)()
        self.ended[number + 0.5] = time.monotonic()

    def seconds(self, server_round: int) -> float:
        """How long a round took."""
        before = self.ended.get(server_round - 0.5, self.ended[server_round - 1])
        return self.ended[server_round] - before


@dataclass
class Stage:
    """A running deployment."""

    running: Deployment
    folder: Path
    lines: Lines
    over: threading.Event = field(default_factory=threading.Event)
    """Is set when the stage is left."""

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a process at once."""
        process = self.running.processes.running[name]
        os.killpg(process.pid, number)
        process.wait()

    def restart_node(self, client: int) -> None:
        """Start a client again, and wait until it is connected."""
        before = self.log_of(f"client-{client}").count("connected to")
        self.running.start_node(client)
        wait_until(lambda: self.log_of(f"client-{client}").count("connected to") > before, f"client {client} is back")

    def log_of(self, name: str) -> str:
        """All that a process wrote, without colours."""
        path = self.running.processes.logs / f"{name}.log"
        return COLOURS.sub("", path.read_text(errors="replace")) if path.exists() else ""

    def train(self, experiment: Experiment, watcher: Watcher, wrap: Wrap = AdaptiveGrid, *, resume: bool = False) -> RunDir:
        """Start a run and be its server."""
        link = self.running.link
        link.start_run(experiment.run_config(), self.running.how.client_app)
        return serve_on(
            link, self.running.processes, experiment, watcher, patience=PATIENCE, resume=resume, wrap=wrap, make_beside=None
        )

    def said(self, *words: str) -> str:
        """The first line of the server's log with these words; empty if there is none."""
        return next((line for line in self.lines.said if all(word in line for word in words)), "")


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not after {seconds:.0f} s")
        time.sleep(0.05)


@contextmanager
def stage(folder: Path, clients: int, plan: Plan | None = None, how: Local | None = None) -> Iterator[Stage]:
    """Start a deployment whose clients follow a plan; their logs and states are kept in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(plan or {}))
    path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    lines, log = Lines(), logging.getLogger("thorns")
    level, propagate = log.level, log.propagate
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        how = replace(how or Local(), client_app="faults.apps:app", logs=folder / "logs")
        with (
            patch.dict(os.environ, {PLAN: str(folder / "plan.json"), "PYTHONPATH": path}),
            deployment(how, clients, folder / "states") as running,
        ):
            play = Stage(running, folder, lines)
            try:
                yield play
            finally:
                play.over.set()
    finally:
        log.removeHandler(lines)
        log.setLevel(level)
        log.propagate = propagate


class Gaps(InlineGrid):
    """The inline engine with clients that are not asked (`absent`), or whose answers are lost, in some rounds."""

    absent: Rounds = {}  # noqa: RUF012
    lost: Rounds = {}  # noqa: RUF012

    def _answer(self, message: Message) -> Message:
        if message.metadata.message_type != "train":
            return super()._answer(message)
        client = message.metadata.dst_node_id - 1
        server_round = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
        if client not in self.absent.get(server_round, set()):
            reply = super()._answer(message)
            if client not in self.lost.get(server_round, set()):
                return reply
        message.metadata.__dict__["_message_id"] = str(next(self._ids))
        return Message(Error(ErrorCode.UNKNOWN, "gone"), reply_to=message)


def reference(experiment: Experiment, folder: Path, absent: Rounds | None = None, lost: Rounds | None = None) -> Tensors:
    """The final weights of an undisturbed run in one process, but for these gaps."""
    quiet = logging.getLogger("thorns")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    experiment = experiment.changed(run_dir=str(folder / f"reference-{time.monotonic_ns()}"))
    grid = Gaps(honest_app, experiment.clients, experiment.run_config())
    grid.absent, grid.lost = absent or {}, lost or {}
    try:
        return weights_of(serve(grid, Context(1, 0, {}, RecordDict(), experiment.run_config()), Between({})))
    finally:
        quiet.setLevel(level)


def weights_of(run: RunDir) -> Tensors:
    """The weights in a run's checkpoint."""
    checkpoint = run.load_checkpoint()
    if checkpoint is None:
        raise RuntimeError(f"{run.path} has no checkpoint")
    return checkpoint.weights


def same(a: Tensors, b: Tensors) -> bool:
    """Whether weights are equal to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
