"""What README.md and the other documents show can be typed: options, names, specs, scripts and links are real ones."""

import re
import sys
from pathlib import Path

import click
import pytest
import typer

import adversary
import client_defenses
from fl_app import data, models
from fl_app.attacking.audit import shape_of
from fl_app.cli import options, results
from fl_app.cli.main import app
from fl_app.cli.permissions import with_allow
from fl_app.cli.run import asked_for
from fl_app.core import plugins
from fl_app.core.local import RULE_NAMES
from fl_app.core.spec import SpecError, suggest
from fl_app.engines import ENGINES
from fl_app.experiment.grants import parse_grants
from fl_app.scoring.metrics import with_plugged
from fl_app.store.capture_format import VERSION
from fl_app.sweeps.file import read_sweep
from fl_app.sweeps.grid import choices
from helpers.documents import blocks_of, commands_of, files_of
from helpers.paths import ROOT

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("**/*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]
DONE = ROOT / "docs" / "architecture.md"  # by a test of its own
TYPED = [(page, words) for page in PAGES if page != DONE for words in commands_of(page, "thorns")]

ADULT = "age,workclass,fnlwgt,sex,income\n39,Private,77516,Male,<=50K\n50,State-gov,83311,Female,>50K\n"
"""Somebody's own table."""


@pytest.fixture
def folder(tmp_path, monkeypatch, typed):
    """A folder with the files that the documents talk about."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    files = {name: text for page in PAGES for name, text in files_of(page).items()}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "adult.csv").write_text(ADULT)
    for kind in ("defense", "attack"):
        assert typed("new", kind, f"my_{kind}").returncode == 0
    yield tmp_path
    for name in [*files, "my_defense.py", "my_attack.py"]:
        sys.modules.pop(name.removesuffix(".py"), None)


def understood(words):
    """(command, what it was given) by the real parser, which runs nothing here."""
    found = []

    def take_over(command):
        command.callback = lambda **given: found.append((command.name, given))
        for option in command.params:
            if isinstance(option.type, click.Path):
                option.type.exists = False  # files such as certificates are elsewhere
        for inner in command.commands.values() if isinstance(command, click.Group) else ():
            take_over(inner)

    command = with_allow(typer.main.get_command(app))
    take_over(command)
    command.main(list(words), standalone_mode=False)
    name, given = found[-1]
    return name, {key: Path(value) if value and key in ("config", "file") else value for key, value in given.items()}


def check(words):
    """Raise if a command would refuse what it was given before it begins."""
    command, given = understood(words)
    if "setting" in given:
        experiment = asked_for(given["setting"], given.get("config"), None)
        text = experiment.model.partition("(")[0] in models.TEXT
        models.size_of(experiment.model, (32, 30522) if text else (3, 32, 32), 10)
        data.recipe_of(experiment.dataset)
        client_defenses.build(experiment.defense)
    if given.get("engine", "inline") not in ENGINES:
        raise SpecError(suggest(given["engine"], ENGINES))
    for text in [*(given.get("defenses") or []), *([given["defense"]] if given.get("defense") else [])]:
        for one in choices(text):
            client_defenses.build(one)
    for text in [*(given.get("attacks") or []), *(given.get("attack") or [])]:
        for one in choices(text):
            adversary.build(one)
    with_plugged(given.get("metric") or [])
    grants = given.get("grant") or []
    parse_grants([grants] if isinstance(grants, str) else grants)
    if given.get("input_shape"):
        shape_of(given["input_shape"])
    if command == "gate":
        results._thresholds({key: given[key] for key in ("psnr", "ssim", "lpips")}, given["limit"] or [])
    if command == "sweep" and given["file"].suffix == ".toml":
        read_sweep(given["file"], given["scale"])
    if command in ("get", "path"):
        for name in given.get("names") or [given["name"]]:
            data.recipe_of(name)


def test_every_command_of_the_documents_is_understood(folder, monkeypatch):
    assert len(TYPED) > 50
    for name in ("knock", "name_cluster"):  # nobody answers at HOST
        monkeypatch.setattr(options, name, lambda address: None)
    for page, words in TYPED:
        monkeypatch.setenv(plugins.ALLOW, "")
        try:
            check(words)
        except (click.ClickException, ValueError, OSError) as error:
            pytest.fail(f"{page.name}: thorns {' '.join(words)}: {error}")


@pytest.mark.parametrize(
    "words",
    [
        "run --confg configs/mnist.toml",
        "run --config configs/minst.toml",
        "run -c rouns=3",
        "run -c defense=prun",
        "run -c defense=prune(ratios=1)",
        "run -c model=resnet18(nrm='group')",
        "run -c dataset=cifar",
        "run -c partition=dirichlet(beta=1)",
        "run -c attack=idgl",
        "run --engine rey",
        "run -c defense=my_defence:MyDefense",
        "attack runs/one --attack matching(objective=cosin)",
        "attack runs/one --grant everything",
        "attack runs/one --metric my_metrics:relative",
        "compare prune(ratio={0.5,2})",
        "sweep configs/quick.toml --scale huge",
        "sweep configs/fast.toml",
        "gate runs/one --psnr high",
        "list defences",
        "data get cifar",
        "deploy server",
        "atack runs/one",
    ],
)
def test_a_wrong_command_would_be_noticed(folder, words):
    with pytest.raises((click.ClickException, ValueError, OSError)):
        check(words.split())


def test_cheap_commands_of_the_readme_really_work(tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    shown = commands_of(README, "thorns")
    for begin in ("new defense", "check my_defense", "list attacks", "list settings", "deploy keys", "run -c model=lenet"):
        (words,) = [one for one in shown if " ".join(one).startswith(begin)]
        done = typed(*words)
        assert done.returncode == 0, (words, done.stderr)
    assert (tmp_path / "runs" / "leak" / "captures" / "round-0001" / "client-15.safetensors").exists()
    assert (tmp_path / "keys" / "client-9.pub").exists()
    sys.modules.pop("my_defense", None)


def test_the_readme_is_short_and_keeps_flower_from_installing():
    text = README.read_text()
    assert len(text.splitlines()) < 250
    first = text.index("```bash")
    assert text.index("scripts/demo") < text.index("scripts/test") < text.index("```", first + 3)
    (block,) = [block.text for block in blocks_of(README) if "flwr run" in block.text]
    assert "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1" in block


def test_the_files_page_names_the_version_and_the_settings_of_a_capture():
    page = (ROOT / "docs" / "files.md").read_text()
    assert f"`version` ({VERSION};" in page
    assert all(name in ("update", "batch-size") or name.startswith("local-") for name in RULE_NAMES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_files_exist(page):
    text = page.read_text()
    for link in re.findall(r"\]\(([^)]+)\)", text):
        place, _, anchor = link.partition("#")
        if not place.startswith("http"):
            target = page.parent / place if place else page
            assert target.exists(), link
            heads = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE) if anchor else []
            assert not anchor or anchor in [re.sub(r"[^a-z0-9 -]", "", one.lower()).replace(" ", "-") for one in heads], link
    if "Measured by an earlier version" in text:
        return  # names the commands that it was measured with
    for block in blocks_of(page):
        text = text.replace(block.text, "") if block.language == "diff" else text  # of files that are to come
    folders = "fl_app|adversary|strategies|client_defenses|tests|scripts|configs|examples"
    for name in re.findall(rf"(?:{folders})/[\w/.-]*\.(?:py|toml|md)|scripts/\w+", text):
        assert (ROOT / name).exists(), name
