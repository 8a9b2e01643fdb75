"""The inline engine on several cores: copies of this process, made once data and model are loaded, answer side by side."""

import contextlib
import json
import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self

import torch
from flwr.clientapp import ClientApp

from fl_app.core.machine import cores
from fl_app.engines.dealt import Answered, DealtGrid, HelperLost, Line, Noted, answered
from fl_app.engines.frames import Frames, from_frames
from fl_app.engines.pipes import Ends, pipes, select
from fl_app.experiment.assets import device_of
from fl_app.experiment.toml import Value

GONE = (EOFError, OSError)


class PoolGrid(DealtGrid):
    """As many processes as cores, each with one thread: sums are the same wherever a client is computed."""

    def __init__(self, client_app: ClientApp, clients: int, run_config: dict[str, Value], workers: int = 0) -> None:
        """`workers` 0: as many as there are cores."""
        super().__init__(client_app, clients, run_config)
        self._wanted = workers or cores()
        # OpenMP's threads do not survive the copying, and a GPU's context does not either.
        alone = run_config.get("threads", 1) != 1 or device_of(str(run_config.get("device", "cpu"))) != "cpu"
        if alone or not hasattr(os, "fork") or multiprocessing.current_process().daemon:
            self._wanted = 1
        self._processes: list[tuple[BaseProcess, Ends]] = []

    def begin(self, number: int) -> int:
        """Copy this process so often."""
        number = min(self._wanted, number)
        if number < 2:
            return 0
        fork = multiprocessing.get_context("fork")
        for _ in range(number):
            ours, theirs = pipes()
            process = fork.Process(target=self._work, args=(theirs, ours), daemon=True)
            process.start()
            theirs.close()
            self._processes.append((process, ours))
        return number

    def ask(self, frames: Frames, shares: dict[int, range]) -> Iterator[tuple[int, Answered | HelperLost]]:
        """Send every process its messages, then read the replies as they come."""
        waiting: dict[int, int] = {}
        for helper, share in shares.items():
            try:
                self._processes[helper][1].send([json.dumps([share.start, share.stop]).encode(), frames.head, *frames.bodies])
                waiting[helper] = len(share)
            except OSError:
                yield helper, self._lost(helper)
        while waiting:
            reading = {self._processes[helper][1].reading: helper for helper in waiting}
            for end in select(list(reading)):
                helper = reading[end]
                try:
                    answer: Answered | HelperLost = _received(self._processes[helper][1])
                    waiting[helper] -= 1
                except GONE:
                    answer = self._lost(helper)
                    waiting[helper] = 0
                if not waiting[helper]:
                    del waiting[helper]
                yield helper, answer

    def _lost(self, helper: int) -> HelperLost:
        process, connection = self._processes[helper]
        connection.close()
        process.join(5)
        code = process.exitcode or 0
        why = f"signal {-code}" if code < 0 else f"exit code {code}"
        return HelperLost(f"one of {len(self._processes)} processes with clients ended ({why}; too little memory?)")

    def _work(self, connection: Ends, *others: Ends) -> None:
        """The life of a copy: until the other end of the pipe is closed."""
        for ours in [*others, *(ours for _, ours in self._processes)]:
            ours.close()  # else a copy would keep the pipes of the others open after the end of this process
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # Ctrl-C reaches all: the server decides when to end
        torch.set_num_threads(1)
        noted = Noted()
        for name in ("thorns", "flwr"):
            logging.getLogger(name).handlers = []
        logging.getLogger().handlers = [noted]
        logging.getLogger("thorns").propagate = True
        with contextlib.suppress(*GONE):
            while True:
                share, asked, *parts = connection.receive()
                for message in from_frames(asked, parts, *json.loads(share)):
                    head, bodies, lines, stateful = answered(self, message, noted)
                    connection.send([head, json.dumps([stateful, lines]).encode(), *bodies])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for _, connection in self._processes:
            connection.close()
        for process, _ in self._processes:
            process.join(1)
            process.kill()  # one that still computes has nobody to answer
            process.join()
        self._processes = []


def _received(ends: Ends) -> Answered:
    head, rest, *bodies = ends.receive()
    stateful, lines = json.loads(rest)
    return Answered(bytes(head), bodies, [Line(*line) for line in lines], stateful)
