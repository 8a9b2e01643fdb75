"""Settings: one source of defaults, and errors that a person can act on."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_app.experiment.config import Experiment, from_run_config, read_toml
from fl_app.experiment.toml import ConfigError, parse_assignment, toml_value
from helpers.paths import ROOT


def test_the_flower_app_has_the_same_defaults():
    app = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["config"] == Experiment().run_config()


def test_every_setting_in_pyproject_is_commented():
    block = (ROOT / "pyproject.toml").read_text().partition("[tool.flwr.app.config]\n")[2].partition("\n[")[0]
    assert block.strip() == Experiment().toml().strip()


@given(st.text())
def test_text_survives_toml(text):
    assert tomllib.loads(f"value = {toml_value(text)}")["value"] == text


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/*.toml")), ids=lambda path: path.stem)
def test_every_config_file_is_valid_or_a_sweep(path):
    settings = read_toml(path)
    if "run" not in settings:  # sweeps are checked with the others of their kind
        from_run_config(settings)
        return
    with pytest.raises(ConfigError, match="thorns sweep"):
        from_run_config(settings)


def test_an_experiment_survives_its_file(tmp_path):
    experiment = Experiment(defense="none", optimizer="adam(lr=0.01, drop_at=[5, 9])", partition="dirichlet(alpha=0.3)", seed=4)
    path = tmp_path / "experiment.toml"
    path.write_text(experiment.toml())
    assert from_run_config(read_toml(path)) == experiment


@pytest.mark.parametrize(
    ("config", "hints"),
    [
        ({"modle": "lenet"}, ["unknown setting 'modle'", "did you mean 'model'"]),
        ({"model": "lenet6"}, ["did you mean 'lenet", "resnet18"]),
        ({"defense": "nome"}, ["did you mean 'none'"]),
        ({"dataset": "minst"}, ["did you mean 'mnist'"]),
        ({"clients": 0}, ["clients = 0", "greater than or equal to 1"]),
        ({"fraction": 1.5, "rounds": -1}, ["fraction = 1.5", "rounds = -1"]),
        ({"local-steps": 3}, ["local steps need update='delta'"]),
        ({"split": "80-20"}, ["70/15/15"]),
        ({"min-clients": 11}, ["more than clients=10"]),
        ({"optimizer": "sgd(lr=-1)"}, ["lr=-1", "greater than 0"]),
        ({"partition": "dirichlet(alpha=0)"}, ["greater than 0"]),
        ({"rounds": "many"}, ["rounds = 'many'", "integer"]),
    ],
)
def test_bad_settings_are_named_with_what_is_allowed(config, hints):
    with pytest.raises(ConfigError) as caught:
        from_run_config(config)
    for hint in hints:
        assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds=5", ("rounds", 5)),
        ("model=resnet18(norm='group')", ("model", "resnet18(norm='group')")),
        ("normalize=false", ("normalize", False)),
        ("fraction=0.5", ("fraction", 0.5)),
        ('defense="none"', ("defense", "none")),
    ],
)
def test_assignments(text, expected):
    assert parse_assignment(text) == expected


def test_an_assignment_without_a_value_is_refused():
    with pytest.raises(ConfigError, match="key=value"):
        parse_assignment("rounds")


def test_epsilon_is_refused_of_a_defense_that_promises_none():
    with pytest.raises(ConfigError, match="Prune promises no epsilon: use dp_sgd"):
        from_run_config({"defense": "prune", "delta": 1e-5})
    with pytest.raises(ConfigError, match="promises no epsilon"):  # pruning comes first, by the data
        from_run_config({"defense": "soteria + dp_gaussian", "delta": 1e-5})
    assert from_run_config({"defense": "dp_sgd + prune", "delta": 1e-5}).delta == 1e-5
