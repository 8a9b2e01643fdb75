"""The registry of metrics, metrics from outside the package, and the score of a target on disk."""

import json
import re

import pytest
import torch

from fl_app import models
from fl_app.core import plugins
from fl_app.core.spec import SpecError
from fl_app.experiment.assets import assets_of
from fl_app.experiment.truth import true_examples
from fl_app.scoring.attacks import Scoring
from fl_app.scoring.base import Matched, Measure, Metric, MetricError, Threshold, Tools, Unavailable
from fl_app.scoring.metrics import METRICS, with_plugged
from fl_app.scoring.score import score, summarize
from fl_app.scoring.target import KEYS, TargetScore, lines_of
from fl_app.store.reconstructions import guess_path, save_guess, save_scores
from helpers.paths import ROOT

MODULE = """
from fl_app.scoring.base import Metric

def worst_pixel(pairs):
    return (pairs.x - pairs.true_x).abs().flatten(1).amax(1)

largest = Metric(title="largest error", higher_leaks=False, values=worst_pixel)
psnr = largest
number = 3

def power(*, exponent: float = 2.0) -> Metric:
    return Metric(title="power", higher_leaks=False, values=lambda pairs: worst_pixel(pairs) ** exponent)

def nothing():
    return None
"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A module in the current directory whose names were typed by somebody."""
    name = f"metrics_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(plugins.ALLOW, ",".join(f"{name}:{word}" for word in ("largest", "psnr", "number", "power", "nothing")))
    return name


def pairs(rng, strength):
    """(reconstructions with an error, what they are of), and a judge that is right about the truth."""
    model = models.build("lenet5", (1, 28, 28), 10)
    params = models.parameters_of(model)
    true = torch.rand(8, 1, 28, 28, generator=rng)
    with torch.no_grad():
        y = model(true).argmax(1)
    x = (true + strength * torch.randn(true.shape, generator=rng)).clamp(0, 1)
    return Matched(x, y if strength == 0 else (y + 1) % 10, true, y, Tools(judge=(model, params)))


@pytest.mark.parametrize(
    "name", [name for name, metric in METRICS.items() if metric.needs not in ("evaluator", "rows", "text")]
)
def test_every_metric_has_one_value_per_example_and_says_what_leaks_more(name, rng):
    metric = METRICS[name]
    exact, far = metric(pairs(rng, 0)), metric(pairs(rng, 0.8))
    assert exact.shape == far.shape == (8,)
    assert exact.dtype == torch.float64
    if name == "judged_accuracy":
        assert exact.tolist() == [1] * 8
    else:
        assert metric.leak(exact.mean().item()) > metric.leak(far.mean().item())


def test_the_registry_says_all_that_is_shown():
    assert not METRICS.keys() & set(KEYS)
    judged = {name: metric.threshold for name, metric in METRICS.items() if metric.threshold}
    assert {name: limit.value for name, limit in judged.items()} == {
        "psnr": 15.0,
        "ssim": 0.5,
        "lpips_alex": 0.1,
        "lpips_vgg": 0.15,
        "cells": 0.9,
        "rouge1": 50.0,
        "rouge_l": 50.0,
        "token_f1": 50.0,
        "exact": 0.0,
    }
    assert {name for name, limit in judged.items() if limit.source == "the Refiner paper"} == {"psnr", "ssim"}
    assert {name for name, limit in judged.items() if "docs/report.md" in limit.source} == {"lpips_alex", "lpips_vgg"}
    for metric in METRICS.values():
        facts = json.loads(json.dumps(metric.to_dict()))
        assert Measure.from_dict(facts).to_dict() == metric.to_dict()


def test_a_metric_without_what_it_needs_is_left_out_or_says_why(rng):
    seen = pairs(rng, 0.1)
    asked = score(seen.x, seen.y, seen.true_x, seen.true_y, tools=Tools(lpips=False))
    assert "kl" not in asked.values
    judged = score(seen.x, seen.y, seen.true_x, seen.true_y, tools=seen.tools._replace(lpips=False))
    assert judged.values["kl"].shape == judged.values["judged_accuracy"].shape == (8,)
    with pytest.raises(Unavailable, match="no judge"):
        METRICS["kl"](seen._replace(tools=Tools()))


def test_metrics_from_outside_are_objects_or_made_with_settings(outside, rng):
    metrics = with_plugged([f"{outside}:largest", f"{outside}:power(exponent=3)", "psnr"])
    assert list(metrics) == [*METRICS, "largest", "power"]
    seen = pairs(rng, 0.2)
    largest = (seen.x - seen.true_x).abs().flatten(1).amax(1).double()
    found = score(seen.x, seen.y, seen.true_x, seen.true_y, metrics, Tools(lpips=False)).values
    assert torch.allclose(found["largest"], largest)
    assert torch.allclose(found["power"], largest**3)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}:psnr", "has a 'psnr' already"),
        ("{}:number", "is an int, not a metric"),
        ("{}:nothing", "makes a NoneType, not a metric"),
        ("{}:largest(window=3)", "has no setting 'window'"),
        ("{}:power(exponent='much')", "exponent='much' is not allowed"),
        ("{}:power + {}:largest", "not a sum"),
        ("{}:elsewhere", "is code from outside Thorns"),
        ("ssmi", "did you mean 'ssim'"),
    ],
)
def test_what_is_no_metric_is_refused_in_one_line(outside, text, why):
    with pytest.raises(SpecError, match=why) as refused:
        with_plugged([text.replace("{}", outside)])
    assert "\n" not in str(refused.value)


def test_the_metric_of_the_documentation(tmp_path, monkeypatch, rng):
    text = (ROOT / "docs" / "report.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_metrics.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(plugins.ALLOW, re.search(r"--metric (\S+)", text)[1])
    seen = pairs(rng, 0.2)
    found = with_plugged(plugins.allowed())["absolute"](seen)
    assert torch.allclose(found, (seen.x - seen.true_x).abs().mean((1, 2, 3)).double())


def test_an_installed_package_registers_a_metric(outside, monkeypatch):
    from importlib.metadata import EntryPoint

    entry = EntryPoint("my_metric", f"{outside}:largest", "thorns.metrics")
    monkeypatch.setattr(plugins, "registered", lambda kind: {"my_metric": [entry]} if kind == "metric" else {})
    assert with_plugged(["my_metric"])["my_metric"].title == "largest error"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (lambda pairs: pairs.x.mean(), r"must give a tensor \(2,\), one value per example, not \(\)"),
        (lambda pairs: 3.0, "not float"),
        (lambda pairs: pairs.nowhere, "own cannot be computed: AttributeError"),
        (lambda pairs: pairs.x[9], "own cannot be computed: IndexError"),
    ],
)
def test_a_metric_that_does_not_work_is_named(values, why):
    x, y = torch.zeros(2, 1, 4, 4), torch.arange(2)
    with pytest.raises(MetricError, match=why):
        score(x, y, x, y, {"own": Metric(title="own", higher_leaks=True, values=values)})


def test_a_score_survives_its_file():
    done = TargetScore(
        round=2,
        client=-1,
        status="done",
        values={"psnr": 12.5, "ssim": None},
        unavailable={"ssim": "too small"},
        loss=0.25,
        attack="idlg",
        ledger="labels",
        visibility="aggregate",
        seconds=1.5,
    )
    failed = TargetScore(round=1, client=3, status="failed", reason="diverged")
    lines = [json.loads(line) for line in lines_of([done, failed]).splitlines()]
    assert lines[0]["psnr"] == 12.5  # metrics stand beside the other keys
    assert lines[1] == {"round": 1, "client": 3, "status": "failed", "reason": "diverged"}
    assert [TargetScore.from_dict(line) for line in lines] == [done, failed]
    assert (done.where, failed.where) == ("round 2, aggregate", "round 1, client 3")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"round": "1"}, "round must be int"),
        ({"client": True}, "client must be int"),
        ({"status": "ok"}, "status must be done or failed"),
        ({"psnr": "9"}, "psnr must be int or float"),
        ({"anything": [1]}, "anything must be int or float"),
        ({"unavailable": [1]}, "unavailable must be dict"),
        ({"seconds": []}, "seconds must be"),
    ],
)
def test_a_line_that_is_no_score_is_refused(changed, why):
    with pytest.raises(ValueError, match=why):
        TargetScore.from_dict({"round": 1, "client": 0, "status": "done", "psnr": 9.0, **changed})


@pytest.mark.parametrize("changed", [{"shown": "nowhere"}, {"digits": 99}, {"title": 3}, {"threshold": {"value": "x"}}])
def test_a_description_that_is_none_is_refused(changed):
    facts = Measure(title="t", higher_leaks=True, threshold=Threshold(1.0, "here")).to_dict()
    with pytest.raises((ValueError, KeyError)):
        Measure.from_dict(facts | changed)


def test_scores_of_candidates_are_an_answer_without_image_metrics(small, tmp_path):
    assets = assets_of(small)
    x, y = true_examples(assets, 0, 1)
    notes = {"attack": "guess_members", "ledger": "nothing", "visibility": "individual", "seconds": "0.500"}
    save_guess(guess_path(tmp_path, (1, 0)), x, y, torch.tensor(0.0), notes)
    save_scores(guess_path(tmp_path, (1, 1)), torch.tensor([0.2, 0.8]), notes)
    guess_path(tmp_path, (1, 2)).write_bytes(b"damaged")
    scoring = Scoring(assets, tmp_path, {}, perceptual=False).run([(1, 0), (1, 1), (1, 2)])
    rebuilt, believed, damaged = scoring.targets
    assert (rebuilt.done, rebuilt.values["psnr"]) == (True, 100)
    assert (believed.done, believed.values, believed.seconds) == (True, {}, 0.5)
    assert not damaged.done
    assert summarize(scoring.rows(), "psnr") == (100, None, None, 1, 1, 1)
    assert len(scoring.floors["noise"]) == 1
    lines = (tmp_path / "scores.jsonl").read_text().splitlines()
    assert [TargetScore.from_dict(json.loads(line)) for line in lines] == scoring.targets
