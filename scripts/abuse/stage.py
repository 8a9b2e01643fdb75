"""What every case finds in its folder: pictures, settings, a run that was attacked, a sweep, an app's captures, plug-ins.

pictures/             three classes of small images, train and test
tiny.toml             settings of a run that takes a moment
done/                 that run, with captures of round 1, attacked and scored
swept/, sweep.toml    a sweep of two defenses, finished
app/                  captures of an app that is not ours, with net.py (its model) and truth.safetensors (what its clients used)
plug.py               plug-ins of which most do not work
keys/                 certificates and keys of a deployment with two clients
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

ATTACK = "idlg(iterations=2, restarts=1)"
TINY = """
dataset = "imagefolder(path='pictures', size=12)"
model = "linear"
clients = 3
batch-size = 1
rounds = 2
eval-every = 1
"""
SWEEP = """
title = "Small"
attacks = ["idlg(iterations=2, restarts=1)"]
lpips = false

[run]
dataset = "imagefolder(path='pictures', size=12)"
model = "linear"
clients = 2
batch-size = 1
rounds = 2
eval-every = 1
capture = "1"
defense = ["none", "prune(ratio=0.5)"]
"""
NET = """
import torch
from torch import nn


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 3))


def other():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Linear(8, 3))


def flat():
    return nn.Linear(6, 3)


def broken():
    raise RuntimeError("no GPU here")


def leaves():
    raise SystemExit(3)


def number():
    return 3


class Picky(nn.Module):
    def __init__(self, width):
        super().__init__()


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(36, 3)

    def forward(self, x):
        return self.fc(x.flatten(1)) if x.sum() > 0 else self.fc(-x.flatten(1))


answer = 42
"""
PLUGS = '''
from dataclasses import dataclass

import torch

from adversary import Attack, Guess
from client_defenses import Defense
from fl_app.data.base import Recipe


@dataclass(frozen=True, kw_only=True)
class Raises(Defense):
    """Never works."""

    def transform(self, grads, memory):
        raise KeyError("weight")


@dataclass(frozen=True, kw_only=True)
class Unmade(Defense):
    """Cannot be made."""

    strength: float = 1.0

    def __post_init__(self):
        raise ZeroDivisionError("division by zero")


@dataclass(frozen=True, kw_only=True)
class Infinite(Defense):
    """Sends what is not a number."""

    def transform(self, grads, memory):
        return {name: value * float("nan") for name, value in grads.items()}


@dataclass(frozen=True, kw_only=True)
class Shrinks(Defense):
    """Sends other shapes."""

    def transform(self, grads, memory):
        return {name: value.flatten()[:1] for name, value in grads.items()}


@dataclass(frozen=True)
class Positional(Defense):
    """Its setting has no name."""

    strength: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Guesses(Attack):
    """An attack that breaks off."""

    def run(self, seen, task, streams):
        raise IndexError("list index out of range")


@dataclass(frozen=True, kw_only=True)
class WrongShape(Attack):
    """An attack that answers with nonsense."""

    def run(self, seen, task, streams):
        return Guess(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))


def floats():
    """A data set of floats."""
    return Recipe(key="floats", read=lambda _: {"train_x": torch.rand(4, 1, 8, 8), "train_y": torch.ones(4)}, num_classes=2)


def raising():
    """A data set that breaks off."""
    return Recipe(key="raising", read=lambda folder: {}["train"], num_classes=2)


def no_recipe():
    """A data set that is none."""
    return 3


def empty_model(input_shape, num_classes):
    """A model without weights."""
    return torch.nn.Flatten()


def wide_model(input_shape, num_classes):
    """A model with another answer."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 12 * 12, 7))


def no_model(input_shape, num_classes):
    """A model that is none."""
    return "model"


def raising_metric(guess, truth):
    """A metric that breaks off."""
    raise OverflowError("too large")


number = 3
'''


def build(here: Path) -> None:
    """Make the files of the stage in an empty folder; runs are added by commands of their own."""
    draw = np.random.default_rng(0)
    for label, name in enumerate(("apple", "berry", "cherry")):
        for split, number in (("train", 8), ("test", 3)):
            (here / "pictures" / split / name).mkdir(parents=True)
            for i in range(number):
                pixels = draw.integers(0, 100, (12, 12, 3), dtype=np.uint8)
                pixels[..., label] += 120
                Image.fromarray(pixels).save(here / "pictures" / split / name / f"{i:02d}.png")
    (here / "cache").mkdir()
    (here / "tiny.toml").write_text(TINY)
    (here / "sweep.toml").write_text(SWEEP)
    (here / "net.py").write_text(NET)
    (here / "plug.py").write_text(PLUGS)
    (here / "broken_plug.py").write_text("import no_such_module\n")
    (here / "bad_syntax.py").write_text("def (:\n")


MADE = (
    "run --config tiny.toml -c capture=1 -c run-dir=done",
    f"attack done --no-lpips --attack '{ATTACK}'",
    "run --config tiny.toml -c run-dir=plain",
    "sweep sweep.toml --out swept --workers 1",
    "deploy keys keys --clients 2",
)
"""The commands that make the rest, one after the other."""


def capture(here: Path) -> None:
    """Captures of two clients of an app, and what they used."""
    import importlib.util

    from fl_app.core.local import LocalRule, local_update
    from fl_app.core.observation import Observation
    from fl_app.store.captures import Captures

    found = importlib.util.spec_from_file_location("net", here / "net.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    model, rule, truth = module.net(), LocalRule(kind="delta", batch_size=1, lr=0.1), {}
    params = {name: value.detach() for name, value in model.named_parameters()}
    for client in range(2):
        x, y = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(client)), torch.tensor([client])
        update = local_update(model, params, x, y, rule)
        seen = Observation(params=params, update=update, rule=rule, num_examples=1, server_round=1, client=client)
        Captures(here / "app" / "captures").write(seen)
        truth |= {f"round-0001/client-{client:02d}/x": x, f"round-0001/client-{client:02d}/y": y}
    save_file(truth, here / "truth.safetensors")
