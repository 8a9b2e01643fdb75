"""Between an Experiment and its run directory."""

from datetime import datetime
from pathlib import Path

from fl_app.experiment.config import Experiment, from_run_config, read_toml
from fl_app.experiment.environment import environment
from fl_app.experiment.toml import ConfigError
from fl_app.store.files import RunError, write_atomic
from fl_app.store.runs import RunDir

MALICIOUS = "MALICIOUS.txt"
"""Lies in the directory of a run with a malicious server, whatever the directory is called."""


def experiment_of(run: RunDir) -> Experiment:
    """The settings of a run."""
    try:
        given = read_toml(run.settings_path)
    except ConfigError as error:  # it names the file
        raise RunError(f"{error}; without its settings nothing can be done with the run") from error
    try:
        return from_run_config(given)
    except ConfigError as error:
        raise RunError(f"{run.settings_path} does not fit this version: {error}") from error


def create_run(path: Path, experiment: Experiment) -> RunDir:
    """Make a new run; an existing one is never overwritten."""
    run = RunDir.create(path, experiment.toml(), environment())
    if experiment.warning:
        write_atomic(path / MALICIOUS, f"{experiment.warning}\n")
    return run


def new_path(experiment: Experiment, base: Path) -> Path:
    """A fresh, readable name for a run."""
    words = [experiment.dataset, experiment.model, experiment.defense]
    if experiment.craft.chooses:
        words.append(f"malicious_{experiment.server}")
    name = "-".join("".join(c for c in word.partition("(")[0] if c.isalnum() or c == "_") for word in words)
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
    path, number = base / f"{stamp}-{name}", 1
    while path.exists():
        number += 1
        path = base / f"{stamp}-{name}-{number}"
    return path
