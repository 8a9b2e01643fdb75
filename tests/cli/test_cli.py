"""The command line as a person uses it: wrong names, Ctrl-C, twice."""

import json
import signal
import subprocess
import time

import pytest

import adversary
import client_defenses
from fl_app import models
from fl_app.data import DATASETS
from fl_app.scoring.metrics import METRICS
from helpers.cli import THORNS, settings_of, thorns


def test_a_run_a_second_run_and_a_longer_one(small, tmp_path):
    words = settings_of(small)
    first = thorns("run", *words, "-c", "run-dir=out", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "Round 6: accuracy" in first.stdout
    assert "Results: out" in first.stdout
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if "accuracy" in line] == [0, 3, 6]
    again = thorns("run", *words, "-c", "run-dir=out", cwd=tmp_path)
    assert again.returncode == 2
    assert "already holds a run" in again.stderr
    longer = thorns("run", "--resume", "out", "-c", "rounds=9", cwd=tmp_path)
    assert longer.returncode == 0, longer.stderr
    assert "Round 9: accuracy" in longer.stdout
    repeated = thorns("run", "--config", "out/experiment.toml", "-c", "run-dir=copy", cwd=tmp_path)
    assert repeated.returncode == 0, repeated.stderr
    unnamed = thorns("run", *words, cwd=tmp_path)
    assert "Results: runs/2" in unnamed.stdout


def test_ctrl_c_keeps_the_finished_rounds(small, tmp_path):
    process = subprocess.Popen(
        [*THORNS, "run", *settings_of(small, ("rounds", 100000)), "-c", "run-dir=out"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "out" / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 5:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Go on with: thorns run --resume out" in out
    assert "Traceback" not in err
    last = json.loads(metrics.read_text().splitlines()[-1])["round"]
    resumed = thorns("run", "--resume", "out", "-c", f"rounds={last + 3}", cwd=tmp_path)
    assert f"Round {last + 3}: accuracy" in resumed.stdout, resumed.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["run", "-c", "modle=lenet"], "did you mean 'model'"),
        (["run", "-c", "model=lenet55"], "did you mean 'lenet5'"),
        (["run", "-c", "rounds"], "key=value"),
        (["run", "-c", "rounds=0"], "greater than or equal to 1"),
        (["run", "--config", "nowhere.toml"], "no file nowhere.toml"),
        (["run", "--resume", "nowhere"], "not a run directory"),
        (["run", "-c", "dataset=imagefolder(path='nowhere')"], "two classes"),
        (["data", "get", "minst"], "did you mean 'mnist'"),
        (["list", "defences"], "defenses"),
        (["list", "attacks", "--leak"], "--leak is for models, not for attacks"),
        (["list", "models", "--leak", "--shape", "3,0,a"], "such as 3,32,32, not '3,0,a'"),
        (["run", "--engine", "rey"], "ray"),
        (["sweep", "nowhere.toml"], "no file nowhere.toml"),
        (["compare", "prun"], "did you mean 'prune'"),
    ],
)
def test_errors_are_one_message_and_exit_code_2(words, hint, tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    done = typed(*words)
    assert done.returncode == 2
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())  # refused before anything was written


def test_debug_shows_the_traceback(tmp_path):
    done = thorns("--debug", "run", "-c", "modle=lenet", cwd=tmp_path)
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("attacks", adversary.ATTACKS),
        ("defenses", client_defenses.DEFENSES),
        ("models", models.MODELS),
        ("datasets", DATASETS),
        ("metrics", METRICS),
        ("engines", ["inline", "ray"]),
        ("settings", ["local-steps", "informed"]),
    ],
)
def test_everything_can_be_listed(kind, names, typed):
    shown = typed("list", kind).stdout
    assert all(name in shown for name in names)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("attacks", "cosine_lbfgs"), ["tv", "0.001", "total", "'joint'", "iterations", "1000"]),
        (("attacks", "matching"), ["searched side", "cosine", "a list of"]),
        (("defenses", "prune"), ["ratio", "0.9", "float >= 0 <= 1", "'tensor'", "An attacker who knows it"]),
        (("models", "lenet5"), ["activation", "'relu', 'sigmoid'"]),
        (("models", "mlp", "--leak", "--shape", "1,8,8"), ["fc2", "20,100", "200", "yes"]),
        (("datasets", "imagefolder"), ["path", "must be given"]),
        (("defenses", "none"), ["It has no settings."]),
        (("settings", "local-momentum"), ["local-momentum = 0.0: momentum of local SGD"]),
    ],
)
def test_the_settings_of_one_thing_are_explained(words, told, typed):
    shown = typed("list", *words).stdout
    assert all(word in shown for word in told), shown


def test_every_setting_has_a_meaning():
    from fl_app.cli.explain import explain

    for registry in (adversary.ATTACKS, client_defenses.DEFENSES, models.MODELS, DATASETS):
        for name, factory in registry.items():
            assert [one.name for one in explain(factory) if not one.meaning or not one.choices] == [], name


def test_a_name_that_is_not_there_is_answered_with_the_closest(typed):
    done = typed("list", "attacks", "idgl")
    assert done.returncode == 2
    assert done.stderr.count("did you mean 'idlg'") == 1
    assert "have no settings" in typed("list", "engines", "ray").stderr
    with pytest.raises(ValueError, match=r"^an attack is one name"):
        adversary.build("idlg + dlg")


def test_data_commands(typed):
    assert "mnist" in typed("data", "list").stdout
    assert typed("data", "path", "mnist").stdout.strip().endswith("mnist.safetensors")
