"""A server names code: a client imports nothing that its own operator has not allowed."""

import subprocess
import sys
from pathlib import Path

import pytest

from fl_app.client.policy import own_config
from fl_app.core.spec import SpecError
from fl_app.experiment.config import Experiment
from helpers import plugged
from helpers.clients import ask, federation, gradient_of, update_of
from helpers.engines import same
from helpers.tensors import flat


def untouched(name):
    return not Path("imported").exists() and name not in sys.modules


def asked_with(small, settings, own=None):
    """The replies of clients to a run whose config a server made up."""
    grid = federation(small, own or {})
    for context in grid.contexts.values():
        context.run_config = {**context.run_config, **settings}
    return ask(grid, small)


@pytest.mark.parametrize("key", ["defense", "model", "dataset", "partition", "optimizer"])
def test_a_run_that_names_a_module_is_refused_and_nothing_is_imported(small, outside, key):
    name = outside()
    for reply in asked_with(small, {key: f"{name}:Halve"}).values():
        assert reply.has_error()
        assert f"the run: {key} names {name}:Halve, which is code from outside Thorns" in reply.error.reason
        assert f"add --allow {name}:Halve" in reply.error.reason
        assert "\n" not in reply.error.reason
    assert untouched(name)


@pytest.mark.parametrize(
    "text", ["os:system", "os:system(command='touch imported')", "none + subprocess:run", "prune(ratio=os:system)"]
)
def test_no_spelling_reaches_the_system(small, outside, text):
    for reply in asked_with(small, {"defense": text}).values():
        assert reply.has_error()
    assert not list(Path().iterdir())


def test_an_attack_is_no_business_of_a_client(small, outside):
    name = outside()
    replies = asked_with(small, {"attack": f"{name}:Attack", "capture": "1"})
    assert all(not reply.has_error() for reply in replies.values())
    assert untouched(name)


def test_a_client_allows_by_its_own_configuration(small, outside):
    name = outside()
    told = {1: {"allow": f"other:Thing,{name}:Halve"}}
    # One process stands for all clients here, so ask the one that allows last.
    grid = federation(small, told)
    for context in grid.contexts.values():
        context.run_config = {**context.run_config, "defense": f"{name}:Halve"}
    replies = ask(grid, small)
    assert replies[0].has_error()
    sent, plain = update_of(replies[1]), gradient_of(small, 1)
    assert same(sent, {key: 0.5 * value for key, value in plain.items()})


def test_permission_alone_leaves_draws_to_the_run(outside):
    assert own_config({"partition-id": 0, "num-partitions": 2, "allow": "a:B"}) is None


def test_a_clients_own_defense_may_be_plugged_in(small, outside):
    name = outside()
    replies = ask(federation(small, {1: {"defense": f"{name}:Halve(factor=0.25)"}}), small)
    assert same(update_of(replies[1]), {key: 0.25 * value for key, value in gradient_of(small, 1).items()})
    assert not flat(update_of(replies[0])).equal(flat(update_of(replies[1])))


def test_what_a_client_allows_is_a_name(outside):
    with pytest.raises(SpecError, match="code is allowed by name"):
        own_config({"partition-id": 0, "allow": "os"})


def test_a_demand_may_be_plugged_in(small, outside):
    name = outside()
    grid = federation(small, {1: {"demand": f"{name}:Halve"}})
    replies = ask(grid, small)
    assert f"demands the defense '{name}:Halve'" in replies[1].error.reason
    for context in grid.contexts.values():
        context.run_config = {**context.run_config, "defense": f"{name}:Halve + prune"}
    assert not ask(grid, small)[1].has_error()


def test_somebody_elses_experiment_is_refused_as_a_whole(outside):
    name = outside(plugged.MODEL)
    with pytest.raises(ValueError, match="code from outside Thorns"):
        Experiment(model=f"{name}:net")
    assert untouched(name)


def test_a_client_process_holds_no_attack_code():
    code = """
import subprocess
import sys
import fl_app.cli.main, fl_app.cli.deploy, fl_app.engines.grpc.node, fl_app.client_app
from fl_app.experiment.config import Experiment
Experiment(defense="refiner + prune", attack="idlg", capture="1")
found = [name for name in sys.modules if name.partition(".")[0] == "adversary" or name.startswith("fl_app.attacking")]
sys.exit(f"{found}" if found else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
