"""The same experiment on every engine, broken off and resumed: the same weights to the last bit."""

import signal
import subprocess
import sys
import time

import pytest
import torch

import client_defenses
from fl_app import engines
from fl_app.client_app import check_request
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import assets_of
from fl_app.models import parameters_of
from fl_app.store.captures import Captures
from fl_app.store.files import RunError
from fl_app.store.runs import RunDir
from helpers.engines import Residual, StopAt, go, same, weights_of

CASES = {  # few, as each starts Ray
    "partial participation, not IID": {
        "clients": 7,
        "fraction": 0.4,
        "capture": "1-2",
        "partition": "dirichlet(alpha=0.3)",
    },
    "local steps, batch norm": {
        "model": "resnet10",
        "batch_size": 2,
        "rounds": 2,
        "update": "delta",
        "local_steps": 3,
        "local_examples": 4,
        "local_shuffle": True,
        "optimizer": "adam(lr=0.01)",
    },
    "a malicious server": {"server": "loki(bins=20)", "capture": "1-2"},
}


@pytest.mark.parametrize("case", CASES)
def test_ray_gives_the_weights_of_inline(case, small, tmp_path):
    experiment = small.changed(**CASES[case])
    inline = go(experiment.changed(run_dir=str(tmp_path / "inline")))
    ray = go(experiment.changed(run_dir=str(tmp_path / "ray")), "ray")
    assert same(weights_of(inline), weights_of(ray))
    timeless = [[{k: v for k, v in line.items() if "seconds" not in k} for line in run.metrics()] for run in (inline, ray)]
    assert timeless[0] == timeless[1]
    assert not same(weights_of(inline), parameters_of(assets_of(experiment).model))
    seen = [Captures(run.path / "captures").read_all()[0] for run in (inline, ray)]
    assert len(seen[0]) == len(seen[1]) == (6 if experiment.capture != "none" else 0)
    for ours, theirs in zip(*seen, strict=True):
        assert (ours.server_round, ours.client) == (theirs.server_round, theirs.client)
        assert same(ours.params, theirs.params)
        assert same(ours.update, theirs.update)


def test_inline_is_the_loop_one_would_write_by_hand(small):
    assets = assets_of(small)
    model = assets.model
    params = {name: value.clone().requires_grad_() for name, value in parameters_of(model).items()}
    optimizer = torch.optim.SGD(params.values(), lr=0.05, momentum=0.9)
    for server_round in range(1, small.rounds + 1):
        optimizer.zero_grad()
        for client in range(small.clients):
            x, y = assets.batch(client, server_round)
            loss = torch.nn.functional.cross_entropy(torch.func.functional_call(model, params, (x,)), y)
            (loss / small.clients).backward()
        optimizer.step()
    ours = weights_of(go(small))
    for name, value in params.items():
        torch.testing.assert_close(ours[name], value.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        ("inline", {}),
        ("inline", {"clients": 5, "fraction": 0.4}),
        ("inline", {"clients": 6, "fraction": 0.34, "rounds": 12}),  # some are not asked between two stops
        ("inline", {"optimizer": "adam(lr=0.01)"}),
        ("ray", {}),
    ],
    ids=str,
)
def test_a_stopped_run_resumes_to_the_weights_of_an_unbroken_one(engine, settings, small, tmp_path, monkeypatch):
    experiment = small.changed(**settings)
    if engine == "inline":  # Ray's actors would not know a defense that this test registers
        monkeypatch.setitem(client_defenses.DEFENSES, "residual", Residual)
        experiment = experiment.changed(defense="residual + none")
    whole = go(experiment.changed(run_dir=str(tmp_path / "whole")))  # inline, which gives what Ray does
    broken = experiment.changed(run_dir=str(tmp_path / "broken"))
    stops = (4, 5, 6) if "rounds" in settings else (2, 5) if engine == "inline" else (2,)
    for at in stops:
        run = go(broken, engine, StopAt(at), resume=at > stops[0])
        assert run.metrics()[-1]["round"] == at
    run = go(broken, engine, resume=True)
    assert same(weights_of(run), weights_of(whole))
    assert [line["round"] for line in run.metrics()] == list(range(experiment.rounds + 1))


def test_a_killed_run_resumes_from_its_last_checkpoint(small, tmp_path):
    whole = go(small.changed(rounds=400, run_dir=str(tmp_path / "whole")))
    killed = small.changed(rounds=400, run_dir=str(tmp_path / "killed"))
    (tmp_path / "settings.toml").write_text(killed.toml())
    code = "import fl_app.engines.serving as s; s.CHECKPOINT_SECONDS = 0.05; from fl_app.cli.main import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, "run", "--config", str(tmp_path / "settings.toml")])
    run = RunDir(tmp_path / "killed")
    while not run.checkpoint_path.exists():
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with run.metrics_path.open("a") as out:
        out.write('{"round": 399, "accur')  # what a crash in the middle of a line leaves
    assert 0 < run.load_checkpoint().server_round < 400
    resumed = go(killed, resume=True)
    assert same(weights_of(resumed), weights_of(whole))
    assert [line["round"] for line in resumed.metrics()] == list(range(401))


def test_a_run_is_never_overwritten(small):
    go(small)
    with pytest.raises(RunError, match="already holds a run"):
        go(small)


def test_a_damaged_checkpoint_is_named(small, tmp_path):
    run = go(small)
    run.checkpoint_path.write_bytes(run.checkpoint_path.read_bytes()[:100])
    with pytest.raises(RunError, match=r"checkpoint\.safetensors cannot be read"):
        go(small, resume=True)


def test_the_seed_is_all_that_decides(small, tmp_path):
    runs = [go(small.changed(seed=seed, run_dir=str(tmp_path / str(i)))) for i, seed in enumerate((1, 1, 2))]
    assert same(weights_of(runs[0]), weights_of(runs[1]))
    assert not same(weights_of(runs[0]), weights_of(runs[2]))


def test_a_server_that_changes_the_rule_is_refused(small):
    config = {**small.rule.to_dict(), "server-round": 3}
    assert check_request(config, small) == 3
    for key, value in (("batch-size", 1), ("update", "delta"), ("server-round", 0), ("server-round", "1")):
        with pytest.raises(ValueError, match=r"agreed on|no valid round"):
            check_request({**config, key: value}, small)


def test_replies_carry_an_update_and_a_number_and_nothing_else(small):
    from flwr.app import Context, RecordDict

    from fl_app.client_app import app
    from fl_app.core.wire import to_record
    from fl_app.engines.inline import InlineGrid
    from fl_app.engines.serving import build_strategy

    grid = InlineGrid(app, small.clients, small.run_config())
    strategy = build_strategy(small)
    weights = to_record(parameters_of(assets_of(small).model))
    for reply in grid.send_and_receive(strategy.configure_train(1, weights, RecordDict(), grid)):
        assert set(reply.content) == {"arrays", "metrics"}
        assert dict(reply.content["metrics"]) == {"num-examples": small.batch_size}
        assert reply.content["arrays"].keys() == weights.keys()
    assert isinstance(next(iter(grid.contexts.values())), Context)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_explained(small):
    with pytest.raises(RuntimeError, match="sees no GPU"):
        go(small.changed(device="cuda"))


def test_epsilon_grows_with_the_rounds_and_is_recorded(small):
    run = engines.run(small.changed(defense="dp_sgd(noise=2.0) + sign", delta=1e-4, client_examples=8), "inline", Watcher())
    spent = [line["epsilon"] for line in run.metrics() if line["round"]]
    assert len(spent) == small.rounds
    assert spent == sorted(spent)
    assert 0 < spent[0] < spent[-1]
    assert {line["delta"] for line in run.metrics() if line["round"]} == {1e-4}
    plain = engines.run(small.changed(run_dir=small.run_dir + "2"), "inline", Watcher())
    assert not any("epsilon" in line for line in plain.metrics())
