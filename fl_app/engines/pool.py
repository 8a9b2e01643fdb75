"""The inline engine on several cores: copies of this process, made once data and model are loaded, answer side by side."""

import contextlib
import logging
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self

import torch
from flwr.app import Message
from flwr.clientapp import ClientApp

from fl_app.core.machine import cores
from fl_app.engines.dealt import Answered, DealtGrid, HelperLost, Line, Noted, answered
from fl_app.engines.frames import from_frames, to_frames
from fl_app.experiment.config import Value

GONE = (EOFError, OSError)


class PoolGrid(DealtGrid):
    """As many processes as cores, each with one thread: sums are the same wherever a client is computed."""

    def __init__(self, client_app: ClientApp, clients: int, run_config: dict[str, Value], workers: int = 0) -> None:
        """`workers` 0: as many as there are cores."""
        super().__init__(client_app, clients, run_config)
        self._wanted = workers or cores()
        # OpenMP's threads do not survive the copying, and a GPU's context does not either.
        alone = run_config.get("threads", 1) != 1 or run_config.get("device", "cpu") != "cpu"
        if alone or not hasattr(os, "fork") or multiprocessing.current_process().daemon:
            self._wanted = 1
        self._processes: list[tuple[BaseProcess, Connection]] = []

    def begin(self, number: int) -> int:
        """Copy this process so often."""
        number = min(self._wanted, number)
        if number < 2:
            return 0
        fork = multiprocessing.get_context("fork")
        for _ in range(number):
            ours, theirs = fork.Pipe()
            process = fork.Process(target=self._work, args=(theirs, ours), daemon=True)
            process.start()
            theirs.close()
            self._processes.append((process, ours))
        return number

    def ask(self, dealt: dict[int, list[Message]]) -> dict[int, list[Answered] | HelperLost]:
        """Send every process its messages, then read the replies as they come."""
        found: dict[int, list[Answered] | HelperLost] = {}
        reading: dict[int, Connection] = {}
        for helper, messages in dealt.items():
            try:
                _send(self._processes[helper][1], to_frames(messages))
                found[helper] = []
                reading[helper] = self._processes[helper][1]
            except GONE:
                found[helper] = self._lost(helper)
        while reading:
            ready = wait(list(reading.values()))
            for helper in [helper for helper, connection in reading.items() if connection in ready]:
                answers = found[helper]
                assert isinstance(answers, list)  # it is read no more once it is lost
                try:
                    answers.append(_receive_answer(reading[helper]))
                except GONE:
                    found[helper] = answers = self._lost(helper)
                if isinstance(answers, HelperLost) or len(answers) == len(dealt[helper]):
                    del reading[helper]
        return found

    def _lost(self, helper: int) -> HelperLost:
        process, connection = self._processes[helper]
        connection.close()
        process.join(5)
        code = process.exitcode or 0
        why = f"signal {-code}" if code < 0 else f"exit code {code}"
        return HelperLost(f"one of {len(self._processes)} processes with clients ended ({why}; too little memory?)")

    def _work(self, connection: Connection, *others: Connection) -> None:
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
                for message in from_frames(*_receive(connection)):
                    _send_answer(connection, answered(self, message, noted))

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


def _send(connection: Connection, parts: tuple[list[bytes], list[bytes]]) -> None:
    for part in parts:
        connection.send_bytes(len(part).to_bytes(4, "little"))
        for one in part:
            connection.send_bytes(one)


def _receive(connection: Connection) -> tuple[list[bytes], list[bytes]]:
    heads, bodies = (
        [connection.recv_bytes() for _ in range(int.from_bytes(connection.recv_bytes(), "little"))] for _ in range(2)
    )
    return heads, bodies


def _send_answer(connection: Connection, answer: Answered) -> None:
    lines = [part for line in answer.lines for part in (line.level.to_bytes(2, "little"), line.text.encode())]
    _send(connection, ([answer.head, bytes([answer.stateful])], list(answer.bodies)))
    _send(connection, (lines, []))


def _receive_answer(connection: Connection) -> Answered:
    (head, stateful), bodies = _receive(connection)
    lines, _ = _receive(connection)
    said = [Line(int.from_bytes(level, "little"), text.decode()) for level, text in zip(lines[::2], lines[1::2], strict=True)]
    return Answered(head, bodies, said, bool(stateful[0]))
