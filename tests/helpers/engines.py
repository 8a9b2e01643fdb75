"""Runs of an experiment, and what is compared of them."""

import torch

from fl_app import engines
from fl_app.engines.watcher import Watcher
from fl_app.store.captures import Captures


def weights_of(run):
    checkpoint = run.load_checkpoint()
    assert checkpoint is not None
    return checkpoint.weights


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class StopAt(Watcher):
    """Stops after a round."""

    def __init__(self, at):
        self.at, self.now = at, 0

    def on_round(self, line):
        self.now = line["round"]

    def stop_requested(self):
        return self.now >= self.at


def go(experiment, engine="inline", watcher=None, resume=False):
    return engines.run(experiment, engine, watcher or Watcher(), resume=resume)


def captures_of(run):
    seen, damaged = Captures(run.path / "captures").read_all()
    assert damaged == []
    return seen
