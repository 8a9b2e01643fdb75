"""`thorns bound` on small runs: what it says, keeps and refuses."""

import json

import pytest

from fl_app.analysis.bounds.results import Bounds
from fl_app.analysis.bounds.run import Bounding, Effort
from fl_app.cli.bound import Inputs, bound
from fl_app.store.files import RunError
from fl_app.store.runs import RunDir
from helpers.engines import go

CAPTURED = {"clients": 2, "rounds": 1, "capture": "1", "eval_every": 1}


def told(capsys, path, **more):
    bound(path, **{"rounds": "all", "clients": "all", "limit": 1, "at": Inputs.true, "directions": 0, "components": 8, **more})
    return " ".join(capsys.readouterr().out.split())


def made(small, **settings):
    return go(small.changed(**CAPTURED, **settings)).path


def test_without_a_defense_equations_are_counted(small, capsys):
    path = made(small, batch_size=2)
    words = told(capsys, path)
    kept = Bounds.load(path)
    target = kept.targets[0]
    parameters, pixels = target.batch.entries, 2 * 3 * 12 * 12
    assert (target.batch.unknowns, target.batch.rank_at_most) == (pixels, pixels)
    assert f"{parameters:,} equations for {pixels:,} unknowns" in words
    assert (target.alone.unknowns, target.alone.rank_at_most) == (pixels // 2, pixels // 2)
    assert "somebody who knows the other 1 examples" in words
    assert "No bound from noise: there is no noise." in words
    assert (target.unbiased, target.bayesian, kept.robustness) == (None, None, None)
    assert "Taken at the client's own examples" in words
    assert kept.layers[0].unknowns == pixels // 2
    assert "for one example alone in its batch (R-GAP)" in words


def test_noise_bounds_every_attacker(small, capsys):
    path = made(small, batch_size=1, defense="dp_sgd(noise=0.5)")
    words = told(capsys, path, draws=8)
    kept = Bounds.load(path)
    target = kept.targets[0]
    assert target.unbiased.whole
    assert 0 < target.bayesian.mse < target.bayesian.blind
    assert kept.robustness.mu == pytest.approx(2)
    assert (kept.robustness.releases_in_update, kept.robustness.releases_in_all) == (1, 1)
    assert "This limits nobody who uses a prior" in words
    assert "Every attacker, over images drawn from a Gaussian" in words
    assert "Every attack on any one example" in words
    few = told(capsys, path, draws=8, directions=20)
    assert "(20 tried)" in few
    assert "a weak form of it from the trace" in few
    assert not Bounds.load(path).targets[0].unbiased.whole
    assert Bounds.load(path).targets[0].bayesian.components == 8


@pytest.mark.parametrize(("examples", "directions"), [(1, 0), (2, 20), (2, 432)])
def test_progress_ends_where_it_was_said_to(small, examples, directions):
    path = made(small, batch_size=examples, defense="dp_gaussian")
    work, done = Bounding(RunDir.open(path), Effort(directions=directions, components=3, draws=8), limit=1), []
    work.run(done.append)
    assert sum(done) == work.total()


def test_public_examples_do_instead_of_the_truth(small, capsys, monkeypatch):
    path = made(small, batch_size=1)
    monkeypatch.setattr("fl_app.analysis.bounds.run.true_aggregate", lambda *_: pytest.fail("it looked at the truth"))
    assert "Taken at public examples." in told(capsys, path, at=Inputs.public)


def test_kinks_are_told_of(small, capsys):
    path = made(small, batch_size=1, model="lenet(activation='relu')", defense="dp_gaussian")
    assert "estimates here, no limits" in told(capsys, path, draws=8, directions=8)
    assert not Bounds.load(path).smooth


@pytest.mark.parametrize("defense", ["gradient_dropout", "latent_perturbation(alpha=0)"])
def test_a_defense_without_a_law_says_so(small, capsys, defense):
    words = told(capsys, made(small, batch_size=1, defense=defense), directions=4)
    assert "No bound from noise: the defense declares no law" in words
    assert "No bound from differential privacy: it needs Gaussian noise" in words


def test_several_steps_have_no_law_but_a_limit(small, capsys):
    path = made(small, batch_size=2, update="delta", local_steps=2, defense="dp_sgd(noise=2)")
    words = told(capsys, path, directions=4)
    assert "No bound from noise: noise in several local steps" in words
    assert Bounds.load(path).robustness.releases_in_update == 1  # two batches of different examples


def test_what_cannot_be_bounded_is_refused(small, capsys, tmp_path):
    path = go(small.changed(rounds=1)).path
    with pytest.raises(RunError, match="has no captures: run with -c capture=1"):
        told(capsys, path)
    path = go(small.changed(**CAPTURED, batch_size=1, run_dir=str(tmp_path / "other"))).path
    with pytest.raises(RunError, match="no captures of --rounds 7"):
        told(capsys, path, rounds="7")
    assert Bounds.load(path) is None
    (path / "bounds.json").write_text(json.dumps({"version": 1}))
    with pytest.raises(RunError, match=r"bounds\.json cannot be read"):
        Bounds.load(path)
