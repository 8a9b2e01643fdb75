"""Runs of an experiment, and what is compared of them."""

from dataclasses import dataclass

import torch

from client_defenses import Defense
from fl_app import engines
from fl_app.engines.watcher import Watcher
from fl_app.store.captures import Captures


def weights_of(run):
    checkpoint = run.load_checkpoint()
    assert checkpoint is not None
    return checkpoint.weights


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@dataclass(frozen=True, kw_only=True)
class Residual(Defense):
    """Remembers half of what it does not send: a defense with a state and with draws."""

    def on_gradient(self, grads, step, memory):
        sent = {}
        for name, value in grads.items():
            value = value + memory.state.get(name, torch.zeros_like(value))
            mask = torch.rand(value.shape, generator=memory.rng) < 0.5
            sent[name], memory.state[name] = value * mask, value * ~mask
        return sent


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
