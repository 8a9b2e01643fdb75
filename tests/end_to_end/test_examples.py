"""An app that knows nothing of us: the README's one-line changes, applied to it and run under Flower's own simulation."""

import io
import logging
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.simulation.run_simulation import _run_simulation
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supercore.telemetry import EventType
from rich.console import Console

from fl_app.attacking.jobs import TaskSpec
from fl_app.cli.audit import audit
from fl_app.engines.inline import InlineGrid
from fl_app.store.captures import Captures
from helpers.paths import ROOT

APP = ROOT / "examples" / "quickstart-pytorch"
BLOCK = re.compile(r"^```diff (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONFIG, MOD, BACKWARD, CURIOUS = BLOCK.findall((APP / "README.md").read_text())
PACKAGE = "quickstart"
PASTED = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
PASTED_MOD, PASTED_BACKWARD, PASTED_CURIOUS = PASTED
# Where the comments of these blocks say that they go.
APP_LINE = "app = ClientApp()"
BACKWARD_LINE = "cross_entropy(model(images), labels).backward()"
STRATEGY_LINE = "strategy = FedAvg(fraction_evaluate=0.0)"


def change(app, block):
    """Apply a block of the README: each part must fit at exactly one place."""
    path, text = app / block[0], (app / block[0]).read_text()
    for part in block[1].split("@@\n"):
        lines = [line or " " for line in part.splitlines()]
        old = "".join(f"{line[1:]}\n" for line in lines if line[0] != "+")
        new = "".join(f"{line[1:]}\n" for line in lines if line[0] != "-")
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)


def paste(copy, file, line, block, after=False):
    """Put a block of the main README in the place of a line of the app, or after it."""
    path = copy / PACKAGE / file
    (found,) = re.findall(rf"^ *{re.escape(line)}\n", path.read_text(), re.MULTILINE)
    new = textwrap.indent(block, found[: found.index(line)])
    path.write_text(path.read_text().replace(found, found * after + new))


@pytest.fixture
def app(tmp_path, monkeypatch):
    """Make a copy of the app with some blocks applied; what Flower and Python keep of an app is forgotten afterwards."""

    def make(name, *blocks):
        copy = tmp_path / name
        shutil.copytree(APP, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for block in blocks:
            change(copy, block)
        return copy

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    forget()
    yield make
    forget()


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def settings_of(copy, **settings):
    config = tomllib.loads((copy / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    fixed = {"save-to": str(copy / "final.npz"), "num-server-rounds": 2}
    return config | fixed | {key.replace("_", "-"): value for key, value in settings.items()}


def weights(copy):
    with np.load(copy / "final.npz") as stored:
        return dict(stored)


def run_ray(copy, **settings):
    """Flower's simulation with two clients, as `flwr run` would start it; the settings go through the app's own config."""
    config = settings_of(copy, **settings)
    toml = (copy / "pyproject.toml").read_text().partition("[tool.flwr.app.config]")[0] + "[tool.flwr.app.config]\n"
    (copy / "pyproject.toml").write_text(toml + "".join(f"{key} = {value!r}\n" for key, value in config.items()))
    # Proof that the actor ran this copy and no other: each run has its own Ray, as its workers keep what they imported.
    marker = copy / "loaded"
    with (copy / PACKAGE / "client_app.py").open("a") as code:
        code.write(f"\nimport os\nopen({str(marker)!r}, 'a').write(f'{{os.getpid()}}\\n')\n")
    forget()
    sys.path[:] = [place for place in sys.path if not (Path(place) / PACKAGE).is_dir()]
    os.environ["PYTHONPATH"] = ""
    run = Run.create_empty(run_id=1)
    run.primary_task_id, run.federation_id = 1, NOOP_FEDERATION_ID
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
    _run_simulation(
        num_supernodes=2,
        exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
        server_app_attr=f"{PACKAGE}.server_app:app",
        client_app_attr=f"{PACKAGE}.client_app:app",
        server_app_context=Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config),
        app_dir=str(copy),
        is_app=True,
        run=run,
        # One actor: each imports torch and scikit-learn anew, which costs more than the training.
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 1, "include_dashboard": False, "logging_level": logging.ERROR, "log_to_driver": False},
        },
    )
    assert {int(line) for line in marker.read_text().splitlines()} - {os.getpid()}
    return weights(copy)


def run_inline(copy, **settings):
    """The same apps in this process: for what need not be shown under Ray again."""
    import importlib

    config = settings_of(copy, **settings)
    forget()
    sys.path.insert(0, str(copy))
    try:
        client = importlib.import_module(f"{PACKAGE}.client_app").app
        server = importlib.import_module(f"{PACKAGE}.server_app").app
    finally:
        sys.path.remove(str(copy))
    grid = InlineGrid(client, 2, config)
    server(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config))
    return weights(copy)


def accuracy(copy, final):
    import torch

    task = sys.modules[f"{PACKAGE}.task"]
    model = task.Net()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in final.items()})
    return task.accuracy(model, *task.test_data())


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("block", [MOD, BACKWARD, CURIOUS, CONFIG], ids=["mod", "backward", "curious", "setting"])
def test_each_use_is_one_line_beside_its_imports(block):
    added = [line[1:] for line in block[1].splitlines() if line.startswith("+") and line[1:]]
    assert len([line for line in added if not line.startswith(("import ", "from "))]) == 1


def test_the_app_knows_nothing_of_us():
    for path in APP.rglob("*.py"):
        assert not re.search(r"thorns|client_defenses|adversary|strategies\b|fl_app", path.read_text()), path


def test_under_ray_the_changed_app_does_what_is_promised(app):
    pristine = app("pristine")
    final = run_inline(pristine)
    assert accuracy(pristine, final) > 0.7

    watched = app("watched", CONFIG, MOD, CURIOUS)
    under_ray = run_ray(watched, defense="none")
    # Up to rounding, as an actor has one thread; that the mod itself changes no bit is the next test.
    assert all(np.allclose(value, final[name], atol=1e-5) for name, value in under_ray.items())
    seen, damaged = Captures(Path("captures")).read_all()
    assert [(one.server_round, one.client) for one in seen] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert damaged == []
    assert {one.num_examples for one in seen} == {750}

    pruned = run_inline(app("pruned", CONFIG, MOD), defense="prune(ratio=0.9)")
    first = {name: value.numpy() for name, value in seen[0].params.items()}
    kept = sum((pruned[name] == value).sum() for name, value in first.items()) / sum(value.size for value in first.values())
    assert 0.6 <= kept < 1  # two clients, two rounds, a tenth each
    assert sum((final[name] == value).sum() for name, value in first.items()) < 300

    inside = run_inline(app("inside", CONFIG, BACKWARD), defense="drop_fedsgd")
    assert not same(inside, final)


def test_inside_the_training_no_defense_is_none_to_the_last_bit(app):
    final = run_inline(app("pristine"), client_images=40)
    assert same(run_inline(app("inside", CONFIG, BACKWARD), client_images=40, defense="none"), final)
    assert same(run_inline(app("mod", CONFIG, MOD), client_images=40, defense="none"), final)
    noisy = [run_inline(app(name, CONFIG, MOD), client_images=40, defense="dp_gaussian") for name in "ab"]
    assert not same(*noisy)  # secret draws
    fixed = [
        run_inline(app(name, CONFIG, MOD), client_images=40, defense="dp_gaussian", **{"defense-seed": 1}) for name in "cd"
    ]
    assert same(*fixed)


def test_what_the_readme_shows_works_when_it_is_pasted(app):
    final = run_inline(app("pristine"), client_images=4, batch_size=4)
    sent, inside = app("sent"), app("inside")
    paste(sent, "client_app.py", APP_LINE, PASTED_MOD)
    paste(sent, "server_app.py", STRATEGY_LINE, PASTED_CURIOUS, after=True)
    run_inline(sent, client_images=4, batch_size=4)
    seen, damaged = Captures(Path("captures")).read_all()
    assert [(one.server_round, one.client, one.num_examples) for one in seen] == [(1, 0, 4), (1, 1, 4), (2, 0, 4), (2, 1, 4)]
    assert damaged == []
    for one in seen:
        kept = sum(int(value.count_nonzero()) for value in one.update.values())
        assert 0.05 < kept / sum(value.numel() for value in one.update.values()) < 0.11
    paste(inside, "client_app.py", BACKWARD_LINE, PASTED_BACKWARD)
    learnt = run_inline(inside, client_images=4, batch_size=4)
    assert learnt.keys() == final.keys()
    assert not same(learnt, final)


def test_a_wrong_defense_is_one_line_per_reply_under_flowers_own_simulation(app, caplog):
    with caplog.at_level(logging.INFO, logger="flwr"):
        final = run_ray(app("typo", CONFIG, MOD), defense="prun(ratio=0.9)", client_images=4)
    assert final == {}
    assert "Traceback" not in caplog.text
    said = [record.getMessage() for record in caplog.records if "prun" in record.getMessage()]
    assert len(said) == 4  # two clients, two rounds
    assert all(
        re.fullmatch(r"\s*> Received error in reply from node \d+: defense_mod: .*did you mean 'prune'.*", one) for one in said
    )


def test_a_wrong_use_sends_nothing_and_says_what_to_do(app, caplog):
    with caplog.at_level(logging.INFO, logger="flwr"):
        final = run_inline(app("wrong", CONFIG, MOD), defense="drop_fedsgd")
    assert final == {}  # no round changed the weights
    assert "write `defense.backward(model, x, y)` in place of `loss.backward()`" in caplog.text


def test_what_was_captured_of_the_app_can_be_attacked(app, monkeypatch):
    """The audit of the README: four images a client, one step, and the picture of what the server can see."""
    copy = app("watched", CONFIG, CURIOUS)
    run_inline(copy, client_images=4, batch_size=4)
    folder = Path("captures").resolve()
    monkeypatch.chdir(copy)
    text = io.StringIO()
    console = Console(file=text, width=200)
    attack = "inverting_gradients(iterations=300, tv=1e-3)"
    out = audit(console, folder, TaskSpec("quickstart.task:Net", (1, 8, 8), 10, None, copy), [attack], rounds="1")
    assert "granted" in text.getvalue()
    assert "No reconstruction is scored" in text.getvalue()
    assert [path.name for path in sorted(out.glob("*/round-0001/*"))] == ["client-00.safetensors", "client-01.safetensors"]
    assert next(out.glob("*/reconstructions.png")).stat().st_size > 500
    # The test knows what the auditor does not: the guess is nearer to the client's images than grey is.
    x, y = guessed(out, "client-00"), own_images(0)
    near = ((x[:, None] - y[None]) ** 2).flatten(2).mean(2).min(0).values.mean()
    assert near < 0.5 * ((y - y.mean()) ** 2).mean()


def guessed(out, name):
    from fl_app.store.reconstructions import load_guess

    return load_guess(next(out.glob(f"*/round-0001/{name}.safetensors")))[0]


def own_images(client):
    task = sys.modules[f"{PACKAGE}.task"]
    return task.train_loader(client, 2, 4, 4, 0).dataset.tensors[0]


def test_the_example_needs_no_more_than_it_says():
    """Its own code imports without us on the path."""
    code = (
        "import quickstart.client_app, quickstart.server_app, sys; assert not {'client_defenses', 'fl_app'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=APP, check=True, timeout=60)
