"""Which versions of Flower are allowed, and what deployment says about the others."""

import importlib.util
import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement

from fl_app.cli import doctor
from fl_app.core.flower import FlowerVersionError, need_grpc, speaks_grpc
from helpers.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def allowed(requirements):
    (flower,) = [one for one in map(Requirement, requirements) if one.name == "flwr"]
    return [one for one in ("1.38.9", "1.39.0", "1.39.7", "1.40.0", "1.41.0", "1.99.0", "2.0.0") if one in flower.specifier]


@pytest.fixture
def flower(tmp_path, monkeypatch):
    """Makes this process believe that a version of Flower is installed."""

    def install(number):
        about = tmp_path / number / f"flwr-{number}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flwr\nVersion: {number}\n")
        monkeypatch.syspath_prepend(about.parent)
        importlib.invalidate_caches()
        assert version("flwr") == number

    return install


def test_any_flower_from_the_oldest_on_is_allowed_and_one_series_for_deployment():
    assert allowed(PROJECT["dependencies"]) == ["1.39.0", "1.39.7", "1.40.0", "1.41.0", "1.99.0"]
    assert allowed(EXTRAS["deploy"]) == ["1.39.0", "1.39.7"]
    assert any("deploy" in one.extras for one in map(Requirement, EXTRAS["dev"]) if one.name == "thorns")


@pytest.mark.parametrize(
    "words",
    [
        ("local", "--clients", "2"),
        ("server", "keys"),
        ("client", "--superlink", "127.0.0.1:9", "--node-config", "partition-id=0", "--insecure"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("number", ["1.40.2", "1.390.0"])
def test_deploy_says_in_one_line_which_flower_it_needs(words, number, flower, typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").mkdir()
    flower(number)
    done = typed("deploy", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line == (
        f"error: thorns deploy speaks gRPC, which needs flwr 1.39; {number} is installed: pip install 'thorns[deploy]' "
        "(everything else works with both)"
    )


def test_the_doctor_says_it_too(flower):
    flower("1.41.0")
    (found,) = [one for one in doctor.versions() if one.what == "flwr"]
    assert (found.state, found.found) == ("note", "1.41.0")
    assert "thorns[deploy]" in found.advice
    flower("1.39.5")
    (found,) = [one for one in doctor.versions() if one.what == "flwr"]
    assert (found.state, found.advice) == ("ok", "")


def test_what_is_installed_is_known_by_its_modules():
    """The version that is said to speak gRPC is the one that has the client for it."""
    there = importlib.util.find_spec("flwr.client.grpc_rere_client") is not None
    assert speaks_grpc() == there
    if not there:
        with pytest.raises(FlowerVersionError):
            need_grpc()
