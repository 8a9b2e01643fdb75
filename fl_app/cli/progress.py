"""The live progress bar of `thorns run`, and what Ctrl-C and SIGTERM do while it is shown."""

import os
import signal
import time
from types import FrameType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fl_app.engines.watcher import Watcher
from fl_app.experiment.config import Experiment
from fl_app.store.runs import RunDir
from fl_app.sweeps.live import say


class ProgressBar(Watcher):
    """Round, accuracy, rounds per second and time left; the first Ctrl-C ends the run after the round, the second at once."""

    def __init__(self, console: Console, engine: str) -> None:
        self.console, self.engine = console, engine
        self.round = 0
        self.interrupted = 0
        """The signal that asked for the end; 0 if none did."""
        self._accuracy = ""
        self._began: float | None = None
        self._before = 0
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[accuracy]}"),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=False),
            console=console,
            refresh_per_second=4,
        )

    def __enter__(self) -> Self:
        numbers = [signal.SIGINT]
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # a deployment has its own way to end
            numbers.append(signal.SIGTERM)
        self._previous = {number: signal.signal(number, self._on_interrupt) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._progress.stop()

    def _on_interrupt(self, number: int, _frame: FrameType | None) -> None:
        if self.interrupted:
            os._exit(128 + number)  # Ray and torch do not end on an exception here; the last checkpoint is on disk
        self.interrupted = number
        self.console.print("Stopping after this round; press Ctrl-C again to stop at once.")

    def started(self, run: RunDir, experiment: Experiment, done: int) -> None:
        """Show what runs, and the bar."""
        words = f"{experiment.dataset}, {experiment.model}, {experiment.clients} clients, defense {experiment.defense}"
        say(self.console, f"{words}; engine {self.engine}" + (f"; after {done} rounds" if done else ""))
        self._before = self.round = done
        self._task = self._progress.add_task("", total=experiment.rounds, completed=done, accuracy="", speed="")
        self._progress.start()

    def on_round(self, line: dict[str, Any]) -> None:
        """Move the bar."""
        self.round = line["round"]
        now = time.monotonic()
        if self._began is None:
            self._began, self._before = now, self.round
        if "accuracy" in line:
            self._accuracy = f"accuracy {line['accuracy']:.3f}"
        rate = (self.round - self._before) / (now - self._began) if now > self._began else 0.0
        speed = f"{rate:.1f} rounds/s" if rate else ""
        self._progress.update(self._task, completed=self.round, accuracy=self._accuracy, speed=speed)

    def stop_requested(self) -> bool:
        """Whether Ctrl-C was pressed, or the system asked for the end."""
        return bool(self.interrupted)
