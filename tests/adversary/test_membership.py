"""Membership attacks: near perfect where theory says so, as noisy as theory says, and told nothing but candidates."""

from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import nn

import adversary
import client_defenses
from adversary import AttackError, Facts, Public
from adversary.inference.likelihood_ratio import LikelihoodRatio
from client_defenses.base import Memory
from fl_app import data
from fl_app.core.local import LocalRule, Step, local_update
from fl_app.core.observation import Candidates, Knowledge, Observation, Task
from fl_app.core.space import Images
from fl_app.scoring import roc
from helpers.attacks import digits, informed, seen_of

OTHERS = 40


def asked(batch, targets=6, defense="none", rule=None):
    """Observations of LeNet-5 whose candidates are the target's examples, then others."""
    x, y = digits(targets, batch)
    seen, task = seen_of(x, y, rule, model_text="lenet5")
    other_x, other_y = data.load("mnist").test.at(slice(3000, 3000 + OTHERS))
    built = client_defenses.build(defense)
    told = []
    for one, own_x, own_y in zip(seen, x, y, strict=True):
        if defense != "none":
            step = Step(one.params, task.model, own_x, own_y)
            one = replace(one, update=built.protect(step, Memory.fresh(one.client)))
        both = Candidates(torch.cat([own_x, other_x]), torch.cat([own_y, other_y]))
        told.append(replace(one, knowledge=Knowledge(candidates=both)))
    return told, task


def auc(attack, seen, task, batch):
    scores = attack(seen, task, 0).scores
    return roc.auc(scores[:, :batch].flatten(), scores[:, batch:].flatten())


def test_alignment_is_near_perfect_at_batch_1_and_falls_with_the_batch():
    attack = adversary.build("alignment")
    found = [auc(attack, *asked(batch), batch) for batch in (1, 4, 32)]
    assert found[0] >= 0.99
    assert found[0] > found[1] > found[2] > 0.5


def test_alignment_falls_with_the_noise_and_who_knows_it_does_no_worse():
    quiet, loud = (auc(adversary.build("alignment"), *asked(1, defense=f"dp_sgd(noise={noise})"), 1) for noise in (0.01, 1.0))
    assert quiet >= 0.99 > loud
    (told,) = informed("alignment", "dp_sgd(noise=0.05)", examples=1)
    assert told.attack == LikelihoodRatio(noise=0.05, clip=1.0)
    seen, task = asked(1, targets=10, defense="dp_sgd(noise=0.05)")
    assert auc(told.attack, seen, task, 1) >= auc(adversary.build("alignment"), seen, task, 1) - 0.02


def test_alignment_of_local_steps_is_that_of_the_gradient():
    rule = LocalRule(kind="delta", batch_size=1, steps=1, lr=0.1)
    plain, steps = (adversary.build("alignment")(*asked(1, targets=2, rule=one), 0).scores for one in (None, rule))
    assert torch.allclose(plain, steps, atol=1e-3)


def orthogonal(number, noise, targets, rng):
    """A linear network at which each candidate's gradient, clipped to 1, is orthogonal to all others; no bias."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(number, 2, bias=False))
    nn.init.zeros_(model[1].weight)
    params = {name: value.detach() for name, value in model.named_parameters()}
    x, y = torch.eye(number).view(number, 1, 1, number) * 9, torch.zeros(number, dtype=torch.int64)
    knowledge = Knowledge(candidates=Candidates(x, y))
    defense = client_defenses.build(f"dp_sgd(noise={noise})")
    seen = []
    for client in range(targets):
        step = Step(params, model, x[:1], y[:1])
        update = defense.protect(step, Memory(state={}, rng=rng))
        facts = {"rule": LocalRule(batch_size=1), "num_examples": 1, "server_round": 1, "client": client}
        seen.append(Observation(params=params, update=update, knowledge=knowledge, **facts))
    return seen, Task(model, Images((1, 1, number)), 2)


@pytest.mark.parametrize("noise", [0.5, 1.0])
def test_the_likelihood_ratio_has_its_closed_form_roc(rng, noise):
    targets = 250
    seen, task = orthogonal(30, noise, targets, rng)
    scores = LikelihoodRatio(noise=noise, clip=1.0)(seen, task, 0).scores
    members, others = scores[:, 0], scores[:, 1:].flatten()
    for rate in (0.01, 0.1, 0.3):
        found = roc.found_at(members, others, rate)
        exact = stats.norm.cdf(stats.norm.ppf(rate) + 1 / noise)  # N(0, 1) against N(1 / noise, 1)
        assert found.low - 0.02 < exact < found.high + 0.02, rate
    assert roc.auc(members, others) == pytest.approx(stats.norm.cdf(1 / noise / 2**0.5), abs=0.04)


def test_the_law_of_noise_is_that_of_the_sum():
    for defense, examples, expected in (
        ("dp_sgd(clip=2, noise=0.5)", 4, LikelihoodRatio(noise=1.0, clip=2.0)),
        ("dp_gaussian(clip=1, scale=0.1)", 4, LikelihoodRatio(noise=0.4, clip=0.0)),
        ("dp_gaussian(clip=1, scale=0.1)", 1, LikelihoodRatio(noise=0.1, clip=1.0)),
        ("dp_sgd(noise=1) + prune(ratio=0.5)", 1, LikelihoodRatio(noise=1.0, clip=1.0)),
    ):
        (told,) = informed("likelihood_ratio", defense, examples=examples)
        assert told.attack == pytest.approx(expected), defense
    assert informed("alignment", "none") == informed("alignment", "prune(ratio=0.5)") == []
    assert adversary.build("loss").informed("dp_sgd", Facts()) == []


@pytest.fixture(scope="module")
def overfit():
    """Two rounds of local steps at weights that know their members by heart."""
    x, y = digits(1, 8)
    seen, task = seen_of(x, y, model_text="lenet5")
    rule = LocalRule(kind="delta", batch_size=8, steps=60, lr=0.1, examples=8)
    params, rounds = seen[0].params, []
    other_x, other_y = data.load("mnist").test.at(slice(3000, 3000 + OTHERS))
    knowledge = Knowledge(candidates=Candidates(torch.cat([x[0], other_x]), torch.cat([y[0], other_y])))
    for server_round in (1, 2):
        update = local_update(task.model, params, x[0], y[0], rule)
        facts = {"num_examples": 8, "server_round": server_round, "knowledge": knowledge}
        rounds.append(Observation(params=params, update=update, rule=rule, **facts))
        params = {name: value + update[name] for name, value in params.items()}
    return rounds, task, Public(*data.load("mnist").test.at(slice(0, 600)))


@pytest.mark.parametrize("text", ["loss", "loss(at=local)", "series", "lira(shadows=4, steps=40)"])
def test_networks_that_know_their_members_by_heart_give_them_away(overfit, text, tmp_path):
    rounds, task, public = overfit
    attack = adversary.build(text)
    if attack.trained:
        attack = attack.prepare(task, rounds[-1], public, 0, tmp_path)
    scores = attack(rounds, task, 0).scores[-1]
    assert roc.auc(scores[:8], scores[8:]) > (0.65 if text.startswith("lira") else 0.75)  # four shadows of forty steps


def test_a_series_is_of_one_client_and_the_mean_of_its_rounds(overfit, tmp_path):
    rounds, task, public = overfit
    attack = adversary.build("series").prepare(task, rounds[0], public, 0, tmp_path)
    together = attack(rounds, task, 0).scores
    alone = torch.stack([attack([one], task, 0).scores[0] for one in rounds])
    assert torch.allclose(together[0], alone.mean(0), atol=1e-4)
    assert torch.equal(together[0], together[1])
    other = [rounds[0], replace(rounds[1], client=1)]
    assert torch.allclose(attack(other, task, 0).scores, alone, atol=1e-4)


def test_shadows_are_learned_once_for_a_network_and_again_for_another(overfit, tmp_path):
    rounds, task, public = overfit
    attack = adversary.build("lira(shadows=2, steps=1)")
    for one in rounds:  # other weights, the same network
        attack.prepare(task, one, public, 0, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    attack.prepare(replace(task, model=nn.Sequential(task.model)), _renamed(rounds[0]), public, 0, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def _renamed(seen):
    return replace(seen, params={f"0.{name}": value for name, value in seen.params.items()})


def test_without_candidates_or_a_network_of_its_own_there_is_nothing_to_tell(overfit):
    seen, task = asked(1, targets=1)
    with pytest.raises(AttackError, match="no candidates to ask"):
        adversary.build("alignment")([replace(seen[0], knowledge=Knowledge())], task, 0)
    with pytest.raises(AttackError, match="needs update='delta'"):
        adversary.build("loss(at=local)")(seen, task, 0)
