"""What a client decides itself: no run config and no request can weaken it."""

import logging
import shutil

import pytest
from flwr.app import Context, RecordDict
from flwr.common.config import parse_config_args

import client_defenses
from client_defenses import Memory
from fl_app import data
from fl_app.client.policy import OwnConfig, at_least, own_config
from fl_app.client_app import defended_update
from fl_app.core.local import local_update
from fl_app.core.seeds import derive
from fl_app.core.spec import SpecError
from fl_app.data.batches import round_positions
from fl_app.engines.serving import serve
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import assets_of
from fl_app.models import parameters_of
from fl_app.store.captures import Captures
from helpers.clients import NOISE, ask, federation, gradient_of, update_of
from helpers.engines import go, same, weights_of
from helpers.tensors import flat


def run_with(experiment, own):
    grid = federation(experiment, own)
    return serve(grid, Context(1, 0, {}, RecordDict(), experiment.run_config()), Watcher())


def test_without_settings_of_its_own_a_client_draws_by_the_runs_seed(small):
    noisy = small.changed(defense=NOISE)
    replies = ask(federation(noisy, {}), noisy)
    assets = assets_of(noisy)
    for client, reply in replies.items():
        memory = Memory.fresh(derive(noisy.seed, "defense", client, 1))
        assert same(update_of(reply), defended_update(assets, parameters_of(assets.model), client, 1, memory)[0])


def test_a_clients_own_defense_stands_in_for_the_runs(small):
    for run_says in ("none", "prune(ratio=0.5)"):
        run = small.changed(defense=run_says, capture="1", run_dir=f"{small.run_dir}-{run_says[:4]}")
        finished = run_with(run, {1: {"defense": "mask(ratio=1.0)"}})
        seen = {one.client: one.update for one in Captures(finished.path / "captures").read_all()[0] if one.server_round == 1}
        assert not flat(seen[1]).any()
        assert flat(seen[0]).any()
        assert flat(seen[2]).any()
    assert finished.metrics()[-1]["accepted"] == 3


def test_an_own_defense_without_an_epsilon_works_in_a_run_that_reports_one(small):
    run = small.changed(defense="dp_sgd(noise=1.0)", delta=1e-4, rounds=1, eval_every=1)
    assert run_with(run, {0: {"defense": "prune"}}).metrics()[-1]["accepted"] == 3


@pytest.mark.parametrize(
    ("given", "least", "enough"),
    [
        ("dp_sgd(clip=1.0, noise=1.0)", "dp_sgd(noise=1.0, clip=1.0)", True),
        ("dp_sgd(noise=2.0)", "dp_sgd(noise=1.0)", True),
        ("dp_sgd(noise=0.5)", "dp_sgd(noise=1.0)", False),
        ("dp_sgd(clip=2.0, noise=2.0)", "dp_sgd(clip=1.0, noise=1.0)", False),
        ("dp_gaussian(scale=2.0)", "dp_laplace(scale=1.0)", False),
        ("dp_gaussian(scale=0.1, clip=None)", "dp_gaussian(scale=0.1)", False),
        ("dp_sgd + prune", "dp_sgd", True),
        ("dp_sgd(noise=3.0) + prune + sign", "dp_sgd", True),
        ("dp_sgd + mixup", "dp_sgd", False),  # looks at data again
        ("prune + dp_gaussian", "dp_gaussian", False),
        ("dp_gaussian(scale=1.0) + prune", "dp_gaussian(scale=0.5) + prune", False),  # prune chooses by what noise hides
        ("dp_gaussian + mask(ratio=0.9)", "dp_gaussian + mask(ratio=0.5)", True),
        ("prune(ratio=0.9)", "prune(ratio=0.8)", False),
        ("none", "dp_sgd", False),
        ("none + dp_sgd", "dp_sgd", True),
        ("none", "none", True),
        ("sign", "none", True),
        ("dp_sgd", "dp_sgd + prune", False),
    ],
)
def test_at_least(given, least, enough):
    assert at_least(client_defenses.build(given), client_defenses.build(least)) is enough


def test_a_run_below_the_demand_is_refused_and_goes_on_with_the_others(small, caplog):
    run = small.changed(defense="dp_sgd(noise=0.1)")
    with caplog.at_level(logging.WARNING, "thorns"):
        finished = run_with(run, {1: {"demand": "dp_sgd(noise=1.0)"}})
    assert [(line["accepted"], line["rejected"]) for line in finished.metrics()[1:]] == [(2, 1)] * small.rounds
    rejected = [message for message in caplog.messages if "the reply of client 1 is rejected" in message]
    assert len(rejected) == small.rounds
    wanted = "this client demands the defense 'dp_sgd(noise=1.0)' or a stronger one, but the run has 'dp_sgd(noise=0.1)'"
    assert all(message.endswith(wanted) and "\n" not in message for message in rejected)
    enough = run_with(run.changed(defense="dp_sgd(noise=1.5)", run_dir=f"{run.run_dir}2"), {1: {"demand": "dp_sgd(noise=1.0)"}})
    assert enough.metrics()[-1]["rejected"] == 0


@pytest.mark.parametrize("settings", [{"batch_size": 2}, {"client_examples": 1}], ids=str)
def test_an_update_of_too_few_examples_is_refused(small, settings):
    run = small.changed(**settings)
    replies = ask(federation(run, {0: {"min-examples": 4}, 1: {"min-examples": 1}}), run)
    assert "demands at least 4 examples in an update" in replies[0].error.reason
    update_of(replies[1])


def test_a_client_learns_from_its_own_images(small, pictures, tmp_path):
    shutil.copytree(pictures, tmp_path / "mine")
    for path in (tmp_path / "mine" / "train").rglob("*.png"):
        if path.name > "04.png":
            path.unlink()
    own = f"imagefolder(path='{tmp_path / 'mine'}', size=12)"
    replies = ask(federation(small, {0: {"dataset": own}}), small)
    train = data.load(own).train
    assert len(train) == 15
    # All its images are its own, in the order of the run's seed; the model and its normalisation are the run's.
    x, y = train.at(round_positions(small.seed, 0, 1, small.batch_size, 15))
    model = assets_of(small).model
    assert same(update_of(replies[0]), local_update(model, parameters_of(model), x, y, small.rule))
    assert same(update_of(replies[1]), gradient_of(small, 1))


def test_own_data_that_do_not_fit_are_refused_without_a_word_about_them(small, pictures, tmp_path, caplog):
    for own in (f"imagefolder(path='{pictures}', size=16)", f"imagefolder(path='{tmp_path / 'secret-ward'}')"):
        replies = ask(federation(small, {0: {"dataset": own}}), small)
        assert "own data" in replies[0].error.reason
        assert str(pictures) not in replies[0].error.reason
        assert "secret-ward" not in replies[0].error.reason
    assert "secret-ward" in caplog.text  # its own log names it


@pytest.mark.parametrize(
    "settings",
    [
        {"defence": "dp_sgd"},
        {"defense": "dp_sgdd"},
        {"defense": "dp_sgd(noise=-1.0)"},
        {"defense": "dp_sgd", "demand": "dp_sgd"},
        {"min-examples": "many"},
        {"dataset": "mnisst"},
        {"secret_seed_file": 3},
    ],
    ids=str,
)
def test_a_client_whose_own_settings_are_wrong_sends_nothing(small, settings, caplog):
    with pytest.raises(SpecError):
        own_config({"partition-id": 0, "num-partitions": 3, **settings})
    replies = ask(federation(small, {0: settings}), small)
    assert "own configuration is not valid; its log says why" in replies[0].error.reason
    assert "this client's node config is not valid" in caplog.text
    update_of(replies[1])


def test_flower_reads_these_settings_from_a_line_and_from_a_file(tmp_path):
    line = """partition-id=0 num-partitions=2 demand="dp_sgd(clip=1.0, noise=1.0)" min-examples=8 secret-seed-file="~/seed" """
    line += """dataset="imagefolder(path='/srv/scans', size=28)" """
    wanted = OwnConfig(
        demand="dp_sgd(clip=1.0, noise=1.0)",
        min_examples=8,
        secret_seed_file="~/seed",
        dataset="imagefolder(path='/srv/scans', size=28)",
    )
    assert own_config(parse_config_args([line])) == wanted
    (tmp_path / "client.toml").write_text(
        'partition-id = 0\nnum-partitions = 2\ndemand = "dp_sgd(clip=1.0, noise=1.0)"\nmin-examples = 8\n'
        'secret-seed-file = "~/seed"\ndataset = "imagefolder(path=\'/srv/scans\', size=28)"\n'
    )
    assert own_config(parse_config_args([str(tmp_path / "client.toml")])) == wanted
    assert own_config(parse_config_args(["partition-id=0 num-partitions=2"])) is None


def test_what_a_library_says_of_the_data_stays_with_the_client(small, monkeypatch, caplog):
    assets = assets_of(small)
    x, y = assets.splits.train.at(slice(0, 4))
    monkeypatch.setattr(type(assets), "batch", lambda self, client, server_round: (x, y + 77))
    with caplog.at_level(logging.DEBUG):
        replies = ask(federation(small, {}), small)
    for reply in replies.values():
        assert reply.error.reason.startswith("RuntimeError: IndexError at ")
        assert "functional.py" in reply.error.reason
        assert "out of bounds" not in reply.error.reason
    assert "out of bounds" not in caplog.text


def test_a_simulation_is_what_it_was(small):
    """No client of a simulation has settings of its own: the same weights as ever, also with draws."""
    run = small.changed(defense="gradient_dropout(p=0.8)")
    assert same(weights_of(go(run)), weights_of(run_with(run.changed(run_dir=f"{run.run_dir}2"), {})))
