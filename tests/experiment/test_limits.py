"""Settings beyond what the data has or memory holds are refused at once, and nothing is made before that."""

import math
import resource
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from fl_app import data, engines
from fl_app.data import folders
from fl_app.data.base import DataError
from fl_app.data.splits import split, training_examples
from fl_app.engines.grpc.local import Local, run_local
from fl_app.engines.watcher import Watcher
from fl_app.experiment import limits
from fl_app.experiment.assets import assets_of
from fl_app.experiment.config import Experiment
from fl_app.experiment.limits import check_limits
from fl_app.experiment.toml import ConfigError
from strategies import optimizers


@contextmanager
def little_room(megabytes=400):
    """Neither much memory nor much time: what takes more address space than that raises MemoryError."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * 2**20, hard))
    began = time.process_time()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert time.process_time() - began < 5  # of this process: the machine may be busy


BEYOND = [
    ({"clients": 100_000_000}, "clients=100000000 is more than the 120 training examples of .*: lower clients"),
    ({"client_examples": 121}, "client-examples=121 is more than the 120"),
    ({"batch_size": 10**9}, "batch-size=1000000000 is more than the 120"),
    ({"update": "delta", "local_examples": 10**8}, "local-examples=100000000 is more than the 120"),
    ({"split": "50/25/25", "clients": 76}, "clients=76 is more than the 75"),
    ({"partition": "shards(per_client=41)"}, "3 clients with at least 41 each cannot share 120"),
    ({"partition": "shards(per_client=1000000000)"}, "with at least 1000000000 each"),
    ({"partition": "dirichlet(smallest=41)"}, "3 clients with at least 41 each cannot share 120"),
    ({"model": "vit(dim=4096, depth=16, heads=1)"}, "with its .* parameters would take .* GB.*: take a smaller model"),
]


@pytest.mark.parametrize(("settings", "said"), BEYOND)
def test_what_the_data_or_the_memory_does_not_hold_is_refused_at_once(small, settings, said, monkeypatch):
    monkeypatch.setattr(limits, "memory", lambda: 10**10)
    data.load(small.dataset)
    experiment = small.changed(**settings)
    for start in (lambda: engines.run(experiment, "inline", Watcher()), lambda: assets_of(experiment)):
        with little_room(), pytest.raises(ValueError, match=said) as error:
            start()
        assert "\n" not in str(error.value)
    assert not Path(small.run_dir).exists()


def test_neither_does_ray_start(small):
    data.load(small.dataset)
    with little_room(), pytest.raises(ConfigError, match="lower clients"):
        engines.run(small.changed(clients=100_000_000), "ray", Watcher())


def test_a_sweep_is_refused_before_its_first_unit(file, sweep):
    path = file()
    path.write_text(path.read_text().replace("clients = 3", "clients = 100000000"))
    with little_room(), pytest.raises(ConfigError, match=r"small\.toml: clients=100000000 is more than the 120"):
        sweep(path)


def test_what_just_fits_is_allowed(small):
    check_limits(small.changed(clients=120, client_examples=120, batch_size=120))
    check_limits(small.changed(clients=3, partition="shards(per_client=40)"))
    check_limits(small.changed(split="50/25/25", clients=75))


@pytest.mark.parametrize("text", ["official", "70/15/15", "1/0/2"])
def test_the_number_of_training_examples_is_known_without_the_split(small, text):
    whole = data.load(small.dataset)
    assert training_examples(whole, text) == len(split(whole, text, 3).train)


def test_the_replies_of_a_round_are_in_memory_at_once(small, monkeypatch):
    size = 4 * limits.models.size_of("lenet", (3, 12, 12), 3)
    monkeypatch.setattr(limits, "memory", lambda: 20 * size)
    check_limits(small.changed(clients=14))
    check_limits(small.changed(clients=100, fraction=0.14))
    with pytest.raises(ConfigError, match=r"the 15 replies of a round would take .*: lower clients or fraction"):
        check_limits(small.changed(clients=15))
    monkeypatch.setattr(limits, "memory", lambda: 1000)
    with pytest.raises(ConfigError, match="the examples of a client's round would take"):
        check_limits(small)


def test_images_that_do_not_fit_are_not_read(pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("THORNS_DATA", str(tmp_path))
    monkeypatch.setattr(folders, "memory", lambda: 10**8)
    monkeypatch.setattr(folders, "read_image", None)  # it would be called
    said = r"150 images of 1024 x 1024 pixels need 0\.9 GB, and this machine has 0\.1 GB: lower size"
    with pytest.raises(DataError, match=said):
        data.fetch(data.recipe_of(f"imagefolder(path='{pictures}', size=1024)"))
    with pytest.raises(ValueError, match="size=1000000 is not allowed"):
        data.recipe_of(f"imagefolder(path='{pictures}', size=1000000)")


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", [name for name, field in Experiment.model_fields.items() if isinstance(field.default, float)])
def test_numbers_that_are_not_finite_are_refused(small, name, value):
    with pytest.raises(ConfigError, match=f"{name.replace('_', '-')} = .* is not allowed"):
        small.changed(**{name: value})


@pytest.mark.parametrize("text", ["sgd(lr=1e999)", "adam(lr=-1e999)", "sgd(weight_decay=1e999)", "sgd(drop=1e999)"])
def test_neither_are_those_of_the_optimiser_allowed(text):
    with pytest.raises(ValueError, match="too large"):
        optimizers.build(text)
    with pytest.raises(ValueError, match="finite"):
        optimizers.ServerSGD(lr=math.inf)


@pytest.mark.parametrize("name", [name for name, field in Experiment.model_fields.items() if type(field.default) is int])
def test_every_whole_number_has_an_upper_bound(small, name):
    with pytest.raises(ConfigError, match=f"{name.replace('_', '-')} = .* is not allowed: input should be less than"):
        small.changed(**{name: 10**30})


@pytest.mark.parametrize("text", ["nan/1/1", "inf/1/1", "1e308/1e308/1e308", "0/0/0"])
def test_a_split_has_finite_shares(text):
    with pytest.raises(ConfigError, match="must leave something"):
        Experiment().changed(split=text)


def test_weights_that_no_message_holds_are_refused_before_anything_starts(small, monkeypatch):
    limits.check_message(small)
    monkeypatch.setattr(limits, "MESSAGE", 1000)
    with pytest.raises(ConfigError, match=r"the weights of model=.* a message over gRPC holds 2 GB: take a smaller"):
        run_local(small, Watcher(), Local())
