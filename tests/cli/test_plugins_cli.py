"""A defense in a file of one's own, through the whole of `thorns`; and files of others, which import nothing."""

import json
import os
import sys
from pathlib import Path

import pytest

from fl_app.cli.new import TEMPLATES
from fl_app.store.runs import RunDir
from helpers import plugged
from helpers.cli import settings_of, thorns
from helpers.engines import same, weights_of

NOTES = """
import os
Path(f"cap-{os.getpid()}").write_text(os.environ.get("ONEDNN_MAX_CPU_ISA", "none"))
"""


@pytest.fixture
def mine(outside):
    """The name of a defense in the current directory."""
    return f"{outside(NOTES + plugged.DEFENSE)}:Halve"


def untouched(name):
    return not Path("imported").exists() and name.partition(":")[0] not in sys.modules


def forget(name):
    """As if this were a new process."""
    Path("imported").unlink(missing_ok=True)
    sys.modules.pop(name.partition(":")[0], None)


def test_every_engine_and_worker_imports_what_was_typed(small, mine, pictures, typed):
    few = settings_of(small.changed(clients=2, rounds=2, eval_every=2), ("defense", f"{mine}(factor=0.25)"))
    assert typed("run", *few, "-c", "run-dir=out0").returncode == 0
    for number, command in enumerate((["run", "--engine", "ray"], ["deploy", "local", "--insecure"]), 1):
        done = thorns(*command, *few, "-c", f"run-dir=out{number}", cwd=Path.cwd())
        assert done.returncode == 0, done.stderr
    inline, ray, deployed = (weights_of(RunDir.open(Path(f"out{number}"))) for number in range(3))
    assert same(inline, ray)
    assert same(inline, deployed)
    data = f"dataset=imagefolder(path='{pictures}', size=12)"
    quick = ["-c", data, "-c", "rounds=2", "--attack", "idlg(iterations=2, restarts=1)", "--targets", "1", "--no-lpips"]
    swept = thorns("compare", mine, *quick, "--workers", "2", "--out", "sweep", cwd=Path.cwd())
    assert swept.returncode == 0, swept.stderr + swept.stdout
    # Worker processes imported it too, each with the cap that the tests set.
    caps = [path.read_text() for path in Path.cwd().glob("cap-*")]
    assert len(caps) >= 6
    assert set(caps) == {os.environ["ONEDNN_MAX_CPU_ISA"]}


def test_a_comparison_its_report_its_gate_and_going_on(pictures, mine, typed):
    data = f"dataset=imagefolder(path='{pictures}', size=12)"
    attack = ["--attack", "idlg(iterations=2, restarts=1)", "--no-lpips"]
    quick = ["-c", data, "-c", "rounds=2", "-c", "eval-every=2", "--targets", "1", "--workers", "1", "--out", "out"]
    first = typed("compare", f"{mine}(factor=0.25)", *attack, *quick)
    assert first.returncode == 0, first.stderr + first.stdout
    assert "Results: out/report.html" in first.stdout
    scored = [json.loads(path.read_text()) for path in Path("out").rglob("attack.json")]
    assert any(one["who"].startswith("informed") for one in scored)  # by default, through `expected`
    (run,) = {path.parent for path in Path("out").glob("runs/outside*/targets/experiment.toml")}
    commands = [["report", "out"], ["gate", "out", "--lpips", "off"], ["sweep", "out"], ["export", "out", "--to", "x.csv"]]
    commands.append(["attack", str(run), *attack])
    for command in commands:  # the name now comes from a file
        forget(mine)
        refused = typed(*command)
        assert refused.returncode == 2, command
        assert refused.stderr.startswith("error: ")
        assert f".toml: defense names {mine}, which is code from outside Thorns: add --allow {mine}" in refused.stderr
        assert refused.stderr.count("\n") == 1
        assert untouched(mine)
    for command in commands:
        done = typed(*command, "--allow", mine)
        judged = command[0] == "gate"  # by an attack of a few iterations, which it calls too weak
        assert done.returncode == (2 if judged else 0), (command, done.stderr)
        assert ("the attack is too weak" in done.stdout) == judged


def test_somebody_elses_file_imports_nothing_until_it_is_allowed(small, mine, typed):
    text = small.changed(rounds=1, eval_every=1, run_dir="").toml()
    Path("their.toml").write_text(text.replace('defense = "none"', f'defense = "{mine}"'))
    refused = typed("run", "--config", "their.toml", "-c", "run-dir=out")
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: their.toml: defense names {mine}, which is code from outside Thorns: add --allow")
    assert refused.stderr.count("\n") == 1
    # What somebody typed does not allow what the file names beside it.
    more = typed("run", "--config", "their.toml", "-c", f"model={mine.partition(':')[0]}:net", "-c", "run-dir=out")
    assert f"their.toml: defense names {mine}" in more.stderr
    assert untouched(mine)
    assert not Path("out").exists()
    for number, (words, allow) in enumerate(
        (((["--allow", mine, "run"]), ""), ((["run", f"--allow={mine}"]), ""), (["run"], f"a:b,{mine}"))
    ):
        done = typed(*words, "--config", "their.toml", "-c", f"run-dir=out{number}", allow=allow)
        assert done.returncode == 0, done.stderr


def test_a_sweep_file_is_somebody_elses_too(pictures, mine, typed):
    Path("their.toml").write_text(
        f'seeds = [0]\n[run]\ndataset = "imagefolder(path={str(pictures)!r})"\ndefense = ["{mine}"]\n'
    )
    refused = typed("sweep", "their.toml", "--dry-run")
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: their.toml: defense names {mine}, ")
    assert untouched(mine)


NODE = 'partition-id=0 num-partitions=1 allow="os"'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "-c", "defense=nowhere_at_all:Halve"], "No module named 'nowhere_at_all'"),
        (["run", "-c", 'defense="MINE:Halv"'], "has no 'Halv'; it has: "),
        (["run", "-c", "defense=MINE:Path"], "makes a PosixPath, not a defense"),
        (["run", "-c", "defense=os:system"], "system() missing required argument"),
        (["compare", "MINE:Halve(factor={0,1})", "--dry-run"], "greater than 0"),
        (["run", "-c", "model=os:getcwd"], "takes no arguments (2 given)"),
        (["run", "-c", "attack=os:getcwd", "-c", "capture=1"], "not an attack"),
        (["run", "--allow", "os", "-c", "rounds=1"], "code is allowed by name, as package.module:Name"),
        (["data", "get", "MINE:Halve"], "not a data set"),
        (["deploy", "client", "--superlink", "127.0.0.1:1", "--node-config", NODE], "allowed by name"),
    ],
)
def test_what_cannot_be_used_is_one_line(mine, typed, words, said):
    done = typed(*(word.replace("MINE", mine.partition(":")[0]) for word in words))
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path("runs").exists()


def test_help_shows_the_option_everywhere(typed):
    for words in (["run"], ["compare"], ["deploy", "client"], []):
        assert "--allow" in typed(*words, "--help").stdout


def test_the_templates_are_part_of_the_package():
    assert sorted(path.name for path in TEMPLATES.iterdir()) == [
        "attack.txt",
        "defense.txt",
        "test_attack.txt",
        "test_defense.txt",
    ]
