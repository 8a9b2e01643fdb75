"""The templates for operators: they parse, and each command in them is one that the installed programs take."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

from fl_app.client.policy import own_config
from helpers.paths import ROOT

DEPLOY = ROOT / "examples" / "deploy"
BIN = Path(sys.executable).parent
UNITS = sorted(DEPLOY.glob("*.service"))
OURS = ("flower-superlink", "flower-supernode", "flwr", "thorns")


def unit_of(path):
    text = path.read_text().replace("\\\n", " ")
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    parser.optionxform = str
    parser.read_string(text)
    return parser


@cache
def help_of(*command):
    """The --help of a program or of its sub-command, on one wide page."""
    env = {**os.environ, "COLUMNS": "400", "TERM": "dumb", "NO_COLOR": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run([BIN / command[0], *command[1:], "--help"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-500:]}{done.stderr[-500:]}"
    return done.stdout


def check_command(words):
    """Each flag is one that the program has; what follows a flag that takes no value is not mistaken for one."""
    name = Path(words[0]).name
    assert name in OURS, words
    words = [part for word in words[1:] for part in (word.split("=", 1) if word.startswith("--") else [word])]
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    # `flwr run . ours`: sub-commands are those words that the help names as such.
    inner = []
    for word in words[:first]:
        if name in ("flwr", "thorns") and re.search(rf"^\W*{re.escape(word)}\s", help_of(name, *inner), re.MULTILINE):
            inner.append(word)
        else:
            break
    page = help_of(name, *inner)
    flags = [word for word in words if re.match(r"--?[a-z]", word)]
    assert flags or inner, words
    for flag in flags:
        assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", page), f"{name} {' '.join(inner)} has no {flag}"
    return name, inner, flags


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_name_commands_that_exist_and_give_nothing_away(path):
    unit = unit_of(path)
    assert unit.sections() == ["Unit", "Service", "Install"]
    service = unit["Service"]
    name, _, flags = check_command(shlex.split(service["ExecStart"]))
    assert "--insecure" not in flags
    if name == "flower-superlink":
        assert {"--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile", "--enable-supernode-auth"} <= set(flags)
    else:
        assert {"--root-certificates", "--key", "--node-config"} <= set(flags)
    assert service["User"] != "root"
    assert service["UMask"] == "0077"
    assert service["NoNewPrivileges"] == "yes"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_takes_the_units(path, tmp_path):
    def verdict(text):
        copy = tmp_path / path.name.replace("@", "@0")
        copy.write_text(text.replace("/opt/thorns/.venv/bin/", f"{BIN}/"))
        done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False, timeout=60)
        return [line for line in (done.stdout + done.stderr).splitlines() if copy.name in line]

    assert verdict(path.read_text()) == []
    assert verdict(path.read_text().replace("ProtectHome=yes", "ProtectHouse=yes")) != []


def test_the_compose_file_is_whole():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"superlink", "client-0", "client-1"}
    for name, service in services.items():
        _, _, flags = check_command(service["command"])
        assert "--insecure" not in flags
        assert set(service["secrets"]) <= set(compose["secrets"])
        used = {word.split("/run/secrets/")[1] for word in service["command"] if "/run/secrets/" in word}
        assert used == set(service["secrets"]), name
        named = {volume.partition(":")[0] for volume in service["volumes"]}
        assert {volume for volume in named if not volume.startswith("/")} <= set(compose["volumes"])
        assert set(service.get("depends_on", [])) <= set(services)
        build = service["build"]
        context = (DEPLOY / build["context"]).resolve()
        assert (context / "pyproject.toml").is_file()
        assert (context / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
        assert "environment" not in service  # no secrets where `docker inspect` shows them
    assert services["superlink"]["ports"] == ["9092:9092"]  # not the port at which runs are started


@pytest.mark.skipif(
    not shutil.which("docker") or subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode,
    reason="there is no docker compose here",
)
def test_docker_takes_the_compose_file():
    command = ["docker", "compose", "-f", DEPLOY / "compose.yaml", "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_clients_settings_are_settings():
    settings = tomllib.loads((DEPLOY / "client.toml").read_text())
    own = own_config(settings)
    assert own is not None
    assert own.defense
    assert own.secret_seed_file
    assert settings["partition-id"] < settings["num-partitions"]


def commands_in(page):
    """The lines of a page's shell blocks that call one of our programs."""
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] in OURS:
                yield words


def test_the_commands_of_the_page_exist():
    found = [check_command(words)[0] for words in commands_in(DEPLOY / "README.md")]
    assert {"flwr", "thorns"} <= set(found)


def test_a_wrong_flag_would_be_noticed():
    for words in (["flower-superlink", "--no-such-flag"], ["thorns", "deploy", "client", "--superlnk", "a:1"]):
        with pytest.raises(AssertionError, match="has no --"):
            check_command(words)
