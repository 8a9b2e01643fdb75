"""Code of an app that is not ours, and captures of its clients."""

import sys

import torch

from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Observation
from fl_app.store.captures import Captures

MODULE = "theirs_for_the_audit"


CODE = """
import torch
from torch import nn

def plain():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, 3))

def normed():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 3))

class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(36, 3)
        self.scale = nn.Parameter(torch.tensor(9.0), requires_grad=False)
        self.register_buffer("shift", torch.tensor(9.0))

    def forward(self, x):
        return self.fc(self.scale * x.flatten(1) + self.shift)

class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(36, 3)

    def forward(self, x):
        return self.fc(x.flatten(1)) if x.sum() > 0 else self.fc(-x.flatten(1))

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(36, 3)
        self.b = self.a

    def forward(self, x):
        return self.b(x.flatten(1))

def broken():
    raise RuntimeError("no GPU here")

def nothing():
    return 3
"""


RULE = LocalRule(kind="delta", batch_size=1, lr=0.1)


IDLG = "idlg(iterations=150, restarts=1)"


def capture(folder, function, clients=2, more=None, inputs=None, **changes):
    """Captures as Curious makes them of clients that reply with their whole state dict; returns the clients' images."""
    sys.path.insert(0, str(folder))
    torch.manual_seed(0)  # some networks of so few weights tell little
    model = getattr(__import__(MODULE), function)()
    sys.path.remove(str(folder))
    state = {name: value.detach().clone() for name, value in model.state_dict().items()} | (more or {})
    model.load_state_dict(state, strict=False)
    torch.func.replace_all_batch_norm_modules_(model)
    model.eval()
    trained = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    captures, images = Captures(folder / "captures"), []
    for client in range(clients):
        x = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(client))
        update = local_update(model, trained, x if inputs is None else inputs(x), torch.tensor([client % 3]), RULE)
        whole = {name: update.get(name, torch.zeros_like(value)) for name, value in state.items()}
        settings = {"params": state, "update": whole, "rule": RULE, "num_examples": 1, "server_round": 1, "client": client}
        captures.write(Observation(**settings | changes))
        images.append(x[0])
    return images
