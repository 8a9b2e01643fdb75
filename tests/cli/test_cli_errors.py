"""What a person may ask for that is not there: said in one line, before anything is written."""

import io
import json
import signal

import pytest
import typer
from rich.console import Console

from fl_app import engines
from fl_app.cli import run as cli
from fl_app.cli.attack import attack_run
from fl_app.cli.main import _said
from fl_app.cli.progress import ProgressBar
from fl_app.engines.watcher import Watcher
from fl_app.experiment.toml import ConfigError
from fl_app.store.files import RunError
from fl_app.sweeps import command
from helpers.cli import settings_of


def test_a_run_is_not_resumed_to_a_round_that_it_has_passed(small):
    path = engines.run(small, "inline", Watcher()).path
    assert cli.asked_for(["rounds=9"], None, path).rounds == 9
    with pytest.raises(ConfigError, match=r"is at round 6 of 4: add -c rounds=N, N above 6"):
        cli.asked_for(["rounds=4"], None, path)
    with pytest.raises(ConfigError, match="only rounds, eval-every, round-timeout can change, not seed"):
        cli.asked_for(["seed=4"], None, path)


def test_a_run_that_is_made_longer_keeps_its_new_length(small, monkeypatch, capsys):
    run = engines.run(small, "inline", Watcher())
    monkeypatch.chdir(run.path.parent)

    def interrupted(experiment, watcher, make_beside):
        watcher.interrupted = signal.SIGINT
        return engines.run(experiment, "inline", Watcher(), resume=True)

    with pytest.raises(typer.Exit) as ended:
        cli.run_and_report(small.changed(rounds=8), "inline", interrupted)
    assert ended.value.exit_code == 130
    assert "Go on with: thorns run --resume run\n" in capsys.readouterr().out
    assert cli.asked_for(None, None, run.path).rounds == 8


def test_an_attack_on_what_was_not_captured_leaves_older_scores_alone(small):
    path = engines.run(small.changed(capture="1-2", batch_size=1), "inline", Watcher()).path
    told = Console(file=io.StringIO())
    asked = ["idlg(iterations=1, restarts=1)"]
    attack_run(told, path, asked, grants=[], clients="0", perceptual=False)
    (scores,) = path.glob("attacks/*/scores.jsonl")
    kept = scores.read_text()
    assert len(kept.splitlines()) == 2
    for words in ({"rounds": "7"}, {"clients": "9"}):
        with pytest.raises(RunError, match=r"captures of rounds 1 to 2 and clients 0 to 2, none of --rounds"):
            attack_run(told, path, asked, grants=[], perceptual=False, **words)
    assert scores.read_text() == kept


def test_a_run_given_to_sweep_is_refused_with_what_to_do(small, tmp_path):
    told = Console(file=io.StringIO())
    (tmp_path / "run.toml").write_text(small.toml())
    with pytest.raises(ConfigError, match=r"holds the settings of one run: `thorns run --config .*run\.toml`"):
        command.sweep(told, tmp_path / "run.toml", None, 1, dry_run=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps({"round": 0}))
    with pytest.raises(RunError, match=r"run is not the folder of a sweep"):
        command.sweep(told, tmp_path / "run", None, 1, dry_run=True)


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1", "127.0.0.1:x", ":9092", "host:0"])
def test_an_address_that_cannot_be_one_is_refused_first(typed, tmp_path, address):
    for words in (("server", str(tmp_path), "--address", address), ("client", "--superlink", address)):
        done = typed("deploy", *words)
        assert done.returncode == 2
        assert "HOST:PORT" in done.stderr
        assert "Traceback" not in done.stderr


def test_errors_of_the_system_name_the_file_without_a_number(tmp_path):
    (tmp_path / "file").touch()
    told = []
    for call in (lambda: (tmp_path / "file").mkdir(), lambda: (tmp_path / "none").read_text()):
        with pytest.raises(OSError, match="Errno") as error:
            call()
        told.append(_said(error.value))
    assert told == [f"{tmp_path / 'file'}: file exists", f"{tmp_path / 'none'}: no such file or directory"]


def test_the_help_of_attack_names_its_default(typed):
    assert "Without --attack it is standard" in typed("attack", "--help").stdout


def test_options_that_would_be_ignored_are_refused(typed, tmp_path):
    for words in (("attack", "--mean", "0.5"), ("attack", "--defense", "prune"), ("gate", "--truth", str(tmp_path))):
        done = typed(words[0], str(tmp_path), *words[1:])
        assert done.returncode == 2
        assert f"{words[1]} is for captures of another app: add --model" in done.stderr
    done = typed("attack", str(tmp_path), "--model", "a:b", "--judge", str(tmp_path))
    assert (done.returncode, "--judge is for runs" in done.stderr) == (2, True)


def test_a_folder_that_cannot_be_one_is_named_before_anything_runs(typed, small, tmp_path):
    (tmp_path / "file").touch()
    for place, why in (("file", "file is not a folder"), ("file/below", "below cannot be made (not a directory)")):
        done = typed("run", *settings_of(small), "-c", f"run-dir={tmp_path / place}")
        assert done.returncode == 2
        assert why in done.stderr
    done = typed("run", *settings_of(small, ("grant", "everything"), ("attack", "idlg"), ("capture", 1)))
    assert "there is no grant 'everything'" in done.stderr


def test_a_misspelt_command_is_answered_once(typed):
    for words in (("rnu",), ("data", "lst"), ("deploy", "lokal"), ("new", "defence")):
        assert typed(*words).stderr.count("Did you mean") == 1


def test_a_damaged_file_of_settings_is_not_called_old(small, typed):
    path = engines.run(small, "inline", Watcher()).path
    (path / "experiment.toml").write_bytes(b"\xff")
    done = typed("attack", str(path))
    assert "experiment.toml is not a TOML file" in done.stderr
    assert "version" not in done.stderr
    (path / "experiment.toml").write_text('colour = "red"\n')
    assert "does not fit this version: unknown setting 'colour'" in typed("attack", str(path)).stderr


def test_sigterm_ends_a_run_after_its_round(small):
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's, where another test has started it in this process
    try:
        with ProgressBar(Console(file=io.StringIO()), "inline") as bar:
            signal.raise_signal(signal.SIGTERM)
            assert bar.stop_requested()
            assert bar.interrupted == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
