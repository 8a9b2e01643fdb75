"""Which rule explains the updates of somebody's app: found again from what torch's own optimisers did."""

import pytest
import torch
import typer
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from fl_app.analysis.app_truth import read_pairs, unexplained
from fl_app.analysis.fit_rule import fit
from fl_app.attacking.jobs import TaskSpec
from fl_app.cli.fit_rule import fit_rule
from fl_app.core.local import LocalRule
from fl_app.core.observation import Observation
from fl_app.store.captures import Captures

STOCK = """
import torch
from torch import nn

class Net(nn.Sequential):
    '''The CNN of PyTorch's first tutorial, which Flower's quickstart trains too.'''
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )

def small():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, 3))
"""
HALF = {"mean": "0.5,0.5,0.5", "std": "0.5,0.5,0.5"}
STALE = LocalRule(kind="delta", batch_size=1, lr=1.0)
"""What an auditor tells Curious who does not know better."""


@pytest.fixture
def stock(tmp_path, monkeypatch):
    (tmp_path / "stock_for_the_fit.py").write_text(STOCK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def trained(folder, factory, shape, classes, sizes, make, *, batch, epochs, normalise=lambda x: x):
    """Captures of clients as Flower's apps train them, and the truth: weights in float32, subtracted by the server."""
    module = __import__("stock_for_the_fit")
    torch.manual_seed(0)
    start = getattr(module, factory)()
    params, draw = {name: value.detach().clone() for name, value in start.named_parameters()}, torch.Generator().manual_seed(1)
    captures, truth = Captures(folder / "captures"), {}
    for client, number in enumerate(sizes):
        x, y = torch.rand(number, *shape, generator=draw), torch.randint(classes, (number,), generator=draw)
        model: nn.Module = getattr(module, factory)()
        model.load_state_dict(params)
        optimizer = make(model.parameters())
        for _ in range(epochs):
            for first in range(0, number, batch):
                optimizer.zero_grad()
                F.cross_entropy(model(normalise(x[first : first + batch])), y[first : first + batch]).backward()
                optimizer.step()
        update = {name: value.detach() - params[name] for name, value in model.named_parameters()}
        captures.write(
            Observation(params=params, update=update, rule=STALE, num_examples=number, server_round=1, client=client)
        )
        truth |= {f"round-0001/client-{client:02d}/x": x, f"round-0001/client-{client:02d}/y": y}
    save_file(truth, folder / "truth.safetensors")
    return captures


def test_the_rule_of_flowers_quickstart_is_found(stock, capsys):
    """Its CNN, normalised inputs, SGD with rate 0.1 and momentum 0.9, two local epochs over one image per client."""

    def make(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    captures = trained(stock, "Net", (3, 32, 32), 10, (1, 1), make, batch=32, epochs=2, normalise=lambda x: (x - 0.5) / 0.5)
    asked = {"model": "stock_for_the_fit:Net", "truth": stock / "truth.safetensors", "input_shape": "3,32,32"}
    fit_rule(stock, **asked, **HALF, save=stock / "fitted" / "captures")
    told = capsys.readouterr().out
    assert "Give this to Curious: LocalRule(kind='delta', batch_size=1, steps=2, lr=0.1, examples=1, momentum=0.9)" in told
    rule = LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1, examples=1, momentum=0.9)
    task = TaskSpec("stock_for_the_fit:Net", (3, 32, 32), 10, ((0.5,) * 3, (0.5,) * 3), stock)
    model = task.build().model
    for pair in read_pairs(stock / "truth.safetensors", Captures(stock / "fitted" / "captures"), task):
        assert pair.seen.rule == rule
        assert unexplained(model, pair.seen, pair.x, pair.y) < 1e-4
        plain = LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1, examples=1)
        assert unexplained(model, pair.seen, pair.x, pair.y, plain) > 0.2
    assert {one.rule for one in captures.read_all()[0]} == {STALE}  # what was captured stays as it is
    with pytest.raises(ValueError, match="is there already"):
        fit_rule(stock, **asked, **HALF, save=stock / "fitted" / "captures")


@pytest.mark.parametrize(
    ("sizes", "batch", "epochs", "optimizer", "wanted"),
    [
        ((1, 1), 8, 1, (torch.optim.SGD, {"lr": 0.05}), {"batch_size": 1, "steps": 1}),
        ((8, 4), 4, 1, (torch.optim.SGD, {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.01}), {"batch_size": 4, "steps": 2}),
        ((2, 4), 2, 3, (torch.optim.SGD, {"lr": 0.3}), {"batch_size": 2, "steps": 6}),
        ((4, 2), 2, 2, (torch.optim.Adam, {"lr": 0.01}), {"batch_size": 2, "steps": 4, "optimizer": "adam"}),
    ],
)
def test_rules_of_many_kinds_are_found(stock, sizes, batch, epochs, optimizer, wanted):
    kind, settings = optimizer
    captures = trained(
        stock, "small", (1, 6, 6), 3, sizes, lambda parameters: kind(parameters, **settings), batch=batch, epochs=epochs
    )
    task = TaskSpec("stock_for_the_fit:small", (1, 6, 6), 3, None, stock)
    best = fit(task.build().model, read_pairs(stock / "truth.safetensors", captures, task))[0]
    assert best.error < 1e-4
    for name, value in {"momentum": 0.0, "weight_decay": 0.0, **wanted, **settings}.items():
        assert getattr(best.rule, name) == value, best


def test_a_gradient_is_told_from_a_change_of_weights(stock):
    captures = trained(stock, "small", (1, 6, 6), 3, (2,), lambda each: torch.optim.SGD(each, lr=1.0), batch=2, epochs=1)
    (seen,) = captures.read_all()[0]
    captures = Captures(stock / "gradients")
    captures.write(
        Observation(
            params=seen.params,
            update={name: -value for name, value in seen.update.items()},
            rule=LocalRule(),
            num_examples=2,
            server_round=1,
            client=0,
        )
    )
    task = TaskSpec("stock_for_the_fit:small", (1, 6, 6), 3, None, stock)
    best = fit(task.build().model, read_pairs(stock / "truth.safetensors", captures, task))[0]
    assert best.rule.kind == "gradient"
    assert best.error < 1e-4


def test_that_no_rule_explains_an_update_is_said(stock, capsys):
    trained(stock, "small", (1, 6, 6), 3, (1,), lambda each: torch.optim.SGD(each, lr=1.0), batch=2, epochs=2)
    name = "round-0001/client-00"
    save_file({f"{name}/x": torch.zeros(1, 1, 6, 6), f"{name}/y": torch.tensor([0])}, stock / "truth.safetensors")
    with pytest.raises(typer.Exit) as end:
        fit_rule(stock, model="stock_for_the_fit:small", truth=stock / "truth.safetensors", input_shape="1,6,6", classes=3)
    assert end.value.exit_code == 1
    assert "No rule explains the updates" in capsys.readouterr().out
