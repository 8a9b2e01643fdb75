"""How a front end follows a run, and how it stops one."""

import logging
from typing import Any

from fl_app.experiment.config import Experiment
from fl_app.store.runs import RunDir

log = logging.getLogger("thorns")


class Watcher:
    """Follows a run through the log; front ends override what they show."""

    def started(self, run: RunDir, experiment: Experiment, done: int) -> None:
        """The run begins, after `done` rounds of an earlier one."""
        log.info("run directory: %s", run.path.resolve())
        self._rounds = experiment.rounds

    def on_round(self, line: dict[str, Any]) -> None:
        """A round ended; `line` is its line in metrics.jsonl."""
        if "accuracy" in line:
            log.info("round %d/%d: accuracy %.4f, loss %.4f", line["round"], self._rounds, line["accuracy"], line["loss"])

    def stop_requested(self) -> bool:
        """Whether to stop after this round, in a state from which the run can go on."""
        return False
