"""The gate: when an attack beats a threshold, what is never a pass, and hostile folders."""

import json

import pytest

from fl_app import engines
from fl_app.analysis.gate import LEAK, PASSED, UNJUDGED, judge
from fl_app.analysis.limits import limits_of
from fl_app.analysis.results import read_study
from fl_app.engines.watcher import Watcher
from helpers.cli import thorns
from helpers.gate import add_attack, failed, line, make_run, make_sweep, run_gate


def code_of(path, worst=False, **thresholds):
    study = read_study(path)
    return judge(study, limits_of(study.measures, thresholds), worst=worst).code


@pytest.mark.parametrize(
    ("lines", "worst", "code"),
    [
        ([line(), line(1)], False, PASSED),
        ([line(psnr=15.0)], False, PASSED),  # on the threshold is not beyond it
        ([line(psnr=15.1)], False, LEAK),
        ([line(ssim=0.51)], False, LEAK),
        ([line(lpips_alex=0.04)], False, LEAK),
        ([line(lpips_vgg=0.04)], False, LEAK),
        ([line(psnr=20.0), line(1, psnr=9.0)], False, PASSED),
        ([line(psnr=20.0), line(1, psnr=9.0)], True, LEAK),
        ([line(lpips_alex=0.01), line(1)], True, LEAK),
        ([line(), failed(1)], False, PASSED),
        ([failed(), failed(1)], False, UNJUDGED),
        ([], False, UNJUDGED),
        ([line(ssim=None, unavailable={"ssim": "too small"})], False, UNJUDGED),
        ([line(psnr=float("nan"))], False, UNJUDGED),
        ([line(psnr=99.0, ssim=None)], False, LEAK),
        ([line(lpips_vgg=None)], False, PASSED),  # one network of the two is enough
    ],
    ids=lambda value: value if isinstance(value, int) else "",
)
def test_when_an_attack_beats_a_threshold(tmp_path, lines, worst, code):
    assert code_of(make_run(tmp_path / "run", lines, defense="sign"), worst) == code


@pytest.mark.parametrize(
    ("undefended", "defended", "floor", "thresholds", "reason"),
    [
        (30.0, 12.0, 10.0, {}, ""),
        (30.0, 12.0, 13.0, {}, "12.0 dB is below the 13.0 dB of the mean image of the class"),
        (12.0, 11.0, 10.0, {}, "undefended updates stay within the limits, too"),
        (12.0, 9.0, 8.0, {"psnr": 10.0}, ""),  # by this limit the undefended leak
        (20.0, 18.0, 8.0, {"psnr": 25.0}, ""),  # and by the usual one they do here: the attack can tell
    ],
)
def test_an_attack_that_is_too_weak_lets_nothing_pass(tmp_path, undefended, defended, floor, thresholds, reason):
    sweep = make_sweep(tmp_path / "sweep", [("none", [line(psnr=undefended)]), ("sign", None)])
    run = make_run(sweep / "runs/1/training", defense="sign")
    add_attack(run, [line(psnr=defended)], floors=[{"floor": "class mean", **line(psnr=floor)}])
    code, out, _ = run_gate(sweep, *(word for name, value in thresholds.items() for word in (f"--{name}", value)))
    assert code == (UNJUDGED if reason else PASSED)
    assert (f"CANNOT JUDGE sign: not decided: the attack is too weak: {reason}" in out) == bool(reason)


def test_undefended_updates_leak_or_show_that_the_attack_is_weak(tmp_path):
    code, out, _ = run_gate(make_run(tmp_path / "run", [line()]))
    assert code == UNJUDGED
    assert "none: not decided: the attack is too weak: undefended updates stay within the limits" in out


def test_thresholds_can_be_moved_and_left_out_but_not_undone(tmp_path):
    run = make_run(tmp_path / "run", [line(psnr=20.0, lpips_alex=None, lpips_vgg=None)])
    assert code_of(run, psnr=25.0) == UNJUDGED
    assert code_of(run, psnr=25.0, lpips=None) == PASSED
    assert code_of(run, psnr=None, lpips=None) == PASSED
    for words in (["--psnr", "nan"], ["--ssim", "inf"], ["--lpips", "x"], ["--psnr", "off", "--ssim", "off", "--lpips", "off"]):
        assert run_gate(run, *words)[0] == UNJUDGED


def test_the_line_says_who_what_how_much_and_on_how_many(tmp_path):
    run = make_run(tmp_path / "run", defense="prune(ratio=0.9)")
    add_attack(run, [line(), line(1)], "naive")
    scores = [line(psnr=18.0, ledger="defense"), line(1, psnr=20.0, ledger="defense"), failed(2)]
    add_attack(run, scores, "informed: support", attack="idlg(support=True)", grants=["defense"])
    code, out, _ = run_gate(run)
    assert code == LEAK
    assert out.count("\n") == 1
    for words in (
        "LEAK 'run'",
        "informed: support idlg(support=True)",
        "granted: defense",
        "psnr mean 19 dB [6.29, 31.7] > 15 dB",
    ):
        assert words in out
    assert "2 targets, 1 failed" in out
    assert "worst target (round 1, client 1) 20 dB" in run_gate(run, "--worst")[1]
    told = json.loads(run_gate(run, "--json")[1])
    assert told["verdict"] == "leak"
    assert [(one["who"], one["value"]) for one in told["findings"] if one["beaten"]] == [("informed: support", 19.0)]
    code, out, _ = run_gate(run, "--psnr", "25")
    assert (code, out[:24]) == (PASSED, "PASSED 2 attacks judged;")


def test_what_was_not_attacked_never_passes(tmp_path):
    run = make_run(tmp_path / "run")
    code, out, _ = run_gate(run)
    assert code == UNJUDGED
    assert "thorns attack" in out
    add_attack(run, [line()]).joinpath("scores.jsonl").unlink()
    assert code_of(run) == UNJUDGED
    assert "neither a run" in run_gate(tmp_path)[2]


def test_a_defended_run_that_only_the_naive_attacked_says_so(tmp_path):
    code, _, told = run_gate(make_run(tmp_path / "run", [line()], defense="prune(ratio=0.9)"))
    assert code == PASSED
    assert "there was no informed attack" in told


def test_a_sweep_is_judged_cell_by_cell_without_its_baseline(tmp_path):
    leaky, safe = [line(psnr=40.0)], [line()]
    sweep = make_sweep(tmp_path / "sweep", [("none", leaky), ("prune(ratio=0.9)", safe)])
    code, _, told = run_gate(sweep)
    assert code == PASSED
    assert "undefended cells are not judged" in told
    assert run_gate(sweep, "--cell", "none*")[0] == LEAK
    assert "no cell" in run_gate(sweep, "--cell", "sign*")[2]
    gaps = make_sweep(tmp_path / "gaps", [("prune(ratio=0.9)", safe), ("sign", None)])
    assert code_of(gaps) == UNJUDGED
    (gaps / "failed").mkdir()
    (gaps / "failed" / "1.json").write_text('{"reason": "out of memory"}')
    assert "'sign, seed 0': the cell failed: out of memory" in run_gate(gaps)[1]


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("attacks/attack-idlg/scores.jsonl", '{"round": 1', "scores.jsonl, line 1 is damaged"),
        (
            "attacks/attack-idlg/scores.jsonl",
            '{"round": 1, "client": 0, "status": "done", "psnr": "9"}',
            "psnr must be int or float",
        ),
        (
            "attacks/attack-idlg/scores.jsonl",
            '{"round": 1, "client": 0, "status": "done", "psnr": true}',
            "psnr must be int or float",
        ),
        ("attacks/attack-idlg/scores.jsonl", '{"status": "done"}', "round must be int, not 'None'"),
        ("attacks/attack-idlg/attack.json", "[" * 100_000, "attack.json is damaged"),
        ("attacks/attack-idlg/attack.json", '{"asked": 3, "attack": "a", "who": "b", "grants": []}', "asked must be str"),
        ("attacks/attack-idlg/floors.jsonl", '{"floor": "noise", "psnr": []}', "psnr must be int or float"),
        ("metrics.jsonl", "[1, 2]", "does not hold one object"),
        ("metrics.jsonl", '{"round": "1", "seconds": 1}', "round must be int, not '1'"),
        ("experiment.toml", "clients = 0", "does not fit this version"),
        ("environment.json", "{", "environment.json is damaged"),
    ],
    ids=range(11),
)
def test_damaged_files_and_wrong_types_are_named(tmp_path, name, text, hint):
    run = make_run(tmp_path / "run", [line()])
    (run / name).write_text(text)
    code, out, told = run_gate(run)
    assert code == UNJUDGED
    assert hint in out + told
    assert str((run / name).parent) in out + told
    (run / name).write_bytes(b"\xff\xfe")
    code, _, told = run_gate(run)
    assert code == UNJUDGED
    assert str(run / name) in told


def test_links_and_paths_to_elsewhere_are_refused(tmp_path):
    elsewhere = make_run(tmp_path / "elsewhere", [line()])
    run = make_run(tmp_path / "run", [line()])
    (run / "attacks" / "more").symlink_to(elsewhere / "attacks" / "attack-idlg")
    assert "more is a link to outside" in run_gate(run)[2]
    for key in ("training", "attacked"):
        sweep = make_sweep(tmp_path / key, [("sign", [line()])], **{key: "../elsewhere"})
        assert "outside the sweep" in run_gate(sweep)[2]
    for broken in ({"cells": [{}]}, {"cells": 3}, [], {"title": "t", "command": "c", "cells": [{"name": 3}]}):
        (sweep / "plan.json").write_text(json.dumps(broken))
        code, _, told = run_gate(sweep)
        assert code == UNJUDGED
        assert "plan.json" in told


def test_an_attack_that_is_named_is_run_first(small):
    path = engines.run(small.changed(batch_size=1, rounds=1, capture="1", defense="prune(ratio=0.5)"), "inline", Watcher()).path
    words = (path, "--attack", "idlg(iterations=2, restarts=1)", "--lpips", "off")
    told = json.loads(run_gate(*words, "--psnr", "99", "--ssim", "off", "--json")[1])
    assert told["verdict"] == "unjudged"
    assert "the attack is too weak" in told["line"]  # it falls below the mean image of the class
    assert {one["who"].partition(":")[0] for one in told["findings"]} == {"naive", "informed"}
    assert {one["n"] for one in told["findings"]} == {3}
    assert run_gate(*words, "--psnr", "0.1")[0] == LEAK
    assert "did you mean" in run_gate(path, "--attack", "idgl")[2]


def test_exit_codes_of_the_command_itself(tmp_path):
    make_run(tmp_path / "leaky", [line(psnr=40.0)])
    for words, code in ((["leaky"], LEAK), (["nowhere"], UNJUDGED)):
        done = thorns("gate", *words, cwd=tmp_path)
        assert done.returncode == code
        assert "Traceback" not in done.stderr


def test_a_run_called_leak_does_not_read_like_a_verdict(tmp_path):
    assert run_gate(make_run(tmp_path / "leak", [line(psnr=20.0)]))[1].startswith("LEAK 'leak': idlg")
