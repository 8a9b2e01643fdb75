"""How far an attack is: a bar that moves within a job, and where nobody sees a bar a line now and then."""

import time
from collections.abc import Sequence
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from adversary.search.progress import report
from fl_app.core.ending import exit_code
from fl_app.sweeps.live import say, spoken

LINE_SECONDS = 30.0


def stopped(console: Console, end: KeyboardInterrupt) -> typer.Exit:
    """Say what remains of an attack that was ended, and how its command ends."""
    console.print("Stopped. At most a minute of search is lost: the same command goes on.")
    return typer.Exit(exit_code(end))


def bar_of(console: Console, word: str) -> Progress:
    """A bar with what is done, and the time that is left."""
    return Progress(
        TextColumn(word, markup=False),
        MofNCompleteColumn(),
        BarColumn(24),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


class AttackBar:
    """Follows the jobs of an attack, given the number of targets in each."""

    def __init__(self, console: Console, attack: str, jobs: Sequence[int]) -> None:
        self._console, self._attack, self._jobs = console, attack[:40], list(jobs)
        self._total, self._done, self._within = sum(jobs), 0, 0.0
        self._bar = bar_of(console, self._attack)
        self._task = self._bar.add_task("", total=self._total)

    def __enter__(self) -> Self:
        self._token = report.set(self._iteration)
        self._began = self._said = time.monotonic()
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        report.reset(self._token)
        self._bar.stop()

    def job_done(self, targets: int) -> None:
        """A job with so many targets has ended; several may be under way."""
        self._jobs.remove(targets)
        self._done, self._within = self._done + targets, 0.0
        self._show()

    def _iteration(self, iteration: int, iterations: int) -> None:
        """The search of the present job is this far; a second search in the same job does not turn the bar back."""
        self._within = max(self._within, min(1.0, iteration / max(1, iterations)))
        self._show()

    def _show(self) -> None:
        completed = self._done + self._within * (self._jobs[0] if self._jobs else 0)
        self._bar.update(self._task, completed=completed)
        now = time.monotonic()
        if self._console.is_terminal or now - self._said < LINE_SECONDS or not completed:
            return
        self._said, share = now, completed / self._total
        left = spoken((now - self._began) * (1 - share) / share)
        say(self._console, f"{self._attack}: {share:.0%} of {self._total} targets, about {left} left")
