"""The canary audit: sound on DP-SGD as it is, and it catches one that forgets its noise on a layer."""

from dataclasses import dataclass

import pytest
import torch

import client_defenses
from client_defenses.dp_sgd import DPSGD
from client_defenses.tools.per_example import clipped_sum
from fl_app import models
from fl_app.analysis.audit_dp import Audit, Effort, audit, audit_run
from fl_app.analysis.canaries import Stage, craft
from fl_app.analysis.results import read_run
from fl_app.core.local import Step
from fl_app.core.spec import SpecError
from fl_app.store.runs import RunDir
from helpers.engines import go

SHAPE, CLASSES, DELTA = (1, 8, 8), 4, 1e-5


@dataclass(frozen=True, kw_only=True)
class Forgetful(DPSGD):
    """DP-SGD that forgets the noise on one tensor."""

    forgotten: str = "1.bias"

    def gradient(self, step, memory):
        sent = super().gradient(step, memory)
        exact = clipped_sum(step, self.clip)[self.forgotten]
        return {**sent, self.forgotten: exact / len(step.x)}


def stage(defense):
    model = models.build("mlp(hidden=[8])", SHAPE, CLASSES, seed=2)
    draw = torch.Generator().manual_seed(0)
    return Stage(model, models.parameters_of(model), torch.rand(2, *SHAPE, generator=draw), torch.tensor([0, 1]), defense)


def forgetful(noise):
    made = stage(DPSGD(noise=noise))
    return made._replace(defense=Forgetful(noise=noise, forgotten=list(made.params)[-1]))


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_epsilon_lies_between_the_two_bounds_and_they_within_a_factor_of_4(noise):
    made = stage(client_defenses.build(f"dp_sgd(noise={noise})"))
    (found,) = audit(made, "dp_sgd", DELTA, Effort(800, 0)).audits
    assert found.lower <= found.lower_gaussian <= found.upper <= 4 * found.lower_gaussian
    assert found.scored == 720  # those that measured the noise are not scored


def test_noise_that_is_forgotten_on_one_layer_is_caught():
    found = audit(forgetful(2.0), "forgetful", DELTA, Effort(400, 0))
    assert found.refuted
    assert found.audits[0].right == found.audits[0].scored
    assert "REFUTED" in found.sentences()[1]


def test_many_canaries_in_one_run_stay_below_the_accountant():
    for noise, rounds in ((0.05, 1), (1.0, 4)):
        made = stage(client_defenses.build(f"dp_sgd(noise={noise})"))
        (found,) = audit(made, "dp_sgd", DELTA, Effort(0, 60, rounds)).audits
        assert (found.kind, found.trials, found.releases) == ("one run", 60, rounds)
        assert found.lower < found.upper
        assert found.lower > 2 or noise == 1.0


def test_canaries_are_loud_enough_to_be_clipped(rng):
    made = stage(DPSGD(clip=30.0))
    x, y = craft(made, 5, rng)
    grads = Step(made.params, made.model, x, y).per_example_gradients()
    norms = torch.stack([value.flatten(1).square().sum(1) for value in grads.values()]).sum(0).sqrt()
    assert (norms >= 30).all()


def test_a_run_is_audited_kept_and_read_back(small):
    run = go(small.changed(model="linear", rounds=1, clients=2, defense="dp_sgd(noise=1)"))
    found = audit_run(RunDir.open(run.path), Effort(100, 10))
    found.save(run.path)
    assert read_run(run.path).audit == found == Audit.load(run.path)
    again = audit_run(RunDir.open(run.path), Effort(100, 10))
    assert again == found
    for text in ("{", '{"defense": "x", "delta": 1e-5, "confidence": 0.9, "audits": []}'):
        (run.path / "audit-dp.json").write_text(text)
        assert "run `thorns audit-dp` again" in read_run(run.path).problems[0]


def test_a_defense_without_an_epsilon_is_refused(small):
    run = go(small.changed(model="linear", rounds=1, clients=2, defense="prune(ratio=0.5)"))
    with pytest.raises(SpecError, match="promises no epsilon"):
        audit_run(RunDir.open(run.path), Effort(100, 10))


@pytest.mark.parametrize(
    ("noise", "trials", "words"), [(0, 100, "adds no noise"), (1, 99, "refute nothing"), (1, 0, "nothing to audit")]
)
def test_what_cannot_be_audited_is_refused(noise, trials, words):
    with pytest.raises(ValueError, match=words):
        audit(stage(DPSGD(noise=noise)), "dp_sgd", DELTA, Effort(trials, 0))
