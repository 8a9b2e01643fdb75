"""Membership scores against the same formulas, written out candidate by candidate."""

from dataclasses import replace

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F

import adversary
from adversary import AttackError, Public
from adversary.inference import base
from adversary.inference.likelihood_ratio import LikelihoodRatio
from adversary.inference.lira import LiRA, _reset
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Candidates, Knowledge
from helpers.rows import ROWS, scene

NET = "mlp(hidden=[5])"


def asked(batch=3, others=4, rule=None):
    """One target whose candidates are its rows and others, and the gradient of each, (candidates, size), one by one."""
    x, y, (seen,), task = scene(batch, targets=1, model=NET)
    rng = torch.Generator().manual_seed(4)
    other_x, other_y = ROWS.noise(others, rng), torch.randint(2, (others,), generator=rng)
    about = Candidates(torch.cat([x[0], other_x]), torch.cat([y[0], other_y]))
    rule = rule or seen.rule
    update = local_update(task.model, seen.params, x[0], y[0], rule)
    seen = replace(seen, rule=rule, update=update, knowledge=Knowledge(candidates=about))
    alone = LocalRule(batch_size=1)
    each = [local_update(task.model, seen.params, about.x[i : i + 1], about.y[i : i + 1], alone) for i in range(batch + others)]
    return seen, task, about, torch.stack([base.flat(one) for one in each]).double()


@pytest.fixture(params=[1, 100, 10**6])
def parts(request, monkeypatch):
    """Gradients of all candidates at once, of one at a time, and of a number that does not divide theirs."""
    size = {1: 1, 100: 3 * 57, 10**6: 10**6}[request.param]
    monkeypatch.setattr(base, "CHUNK", size)


@pytest.mark.usefixtures("parts")
def test_alignment_is_a_cosine():
    seen, task, _, each = asked()
    found = adversary.build("alignment").believe(seen, task, seen.knowledge.candidates)
    expected = torch.cosine_similarity(each, base.flat(seen.update)[None].double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    assert not found.requires_grad
    assert adversary.build("alignment").cost(7, seen.rule) == 107


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(("noise", "clip"), [(0.0, 0.0), (0.3, 0.0), (0.2, 0.4)])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_likelihood_ratio_is_one_of_two_normal_laws(batch, noise, clip):
    """With the candidate in the batch, or with another in its place: the other examples are as the candidates are."""
    seen, task, about, each = asked(batch)
    if clip:
        assert (each.norm(dim=1) > clip).any()
        each = torch.stack([one * min(1.0, clip / float(one.norm())) for one in each])
    total, mean = batch * base.flat(seen.update).double(), each.mean(0)
    variance = noise**2 + (batch - 1) * each.var(0, correction=0).mean() + 1e-12 * total.square().mean()

    def law(centre):
        return torch.distributions.Normal(centre, variance.sqrt()).log_prob(total).sum()

    expected = torch.stack([law(one + (batch - 1) * mean) - law(batch * mean) for one in each])
    found = LikelihoodRatio(noise=noise, clip=clip).believe(seen, task, about)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_what_local_steps_sent_is_their_mean_gradient():
    rule = LocalRule(kind="delta", batch_size=3, steps=2, lr=1e-3, examples=3)
    seen, _, _, each = asked(3, rule=rule)
    torch.testing.assert_close(base.sent(seen).double(), each[:3].mean(0), rtol=0.05, atol=1e-3)
    moved = base.after(seen)
    assert all(torch.equal(moved[name], value + seen.update[name]) for name, value in seen.params.items())
    with pytest.raises(AttackError, match="no network of its own"):
        base.after(asked()[0])


def odds(task, params, about):
    """log(p / (1 - p)) by the probabilities."""
    own = functional_call(task.model, params, (about.x,)).double().softmax(1).gather(1, about.y[:, None])[:, 0]
    return (own / (1 - own)).log()


def test_confidences_are_log_odds():
    seen, task, about, _ = asked()
    found = base.confidences(task, {name: value.requires_grad_() for name, value in seen.params.items()}, about)
    torch.testing.assert_close(found.double(), odds(task, seen.params, about).detach(), rtol=1e-4, atol=1e-4)
    assert not found.requires_grad


def public(number=11):
    rng = torch.Generator().manual_seed(9)
    return Public(ROWS.noise(number, rng), torch.randint(2, (number,), generator=rng))


def test_shadows_are_networks_that_sgd_trained_on_halves_of_the_public():
    seen, task, _, _ = asked()
    known, attack = public(), LiRA(shadows=3, steps=4, batch=5, lr=0.1, momentum=0.5)
    learned = attack.learn(task, seen, known, torch.Generator().manual_seed(2))
    rng = torch.Generator().manual_seed(2)
    seeds = [int(torch.randint(2**62, (), generator=rng)) for _ in range(3)]
    halves = [torch.randperm(11, generator=rng)[:5] for _ in range(3)]
    batches = [torch.randint(5, (3, 5), generator=rng) for _ in range(4)]
    for shadow, seed in enumerate(seeds):
        params = {name: torch.nn.Parameter(value.clone()) for name, value in _reset(task, seen, seed).items()}
        optimizer = torch.optim.SGD(params.values(), lr=0.1, momentum=0.5)
        for drawn in batches:
            rows = halves[shadow][drawn[shadow]]
            optimizer.zero_grad()
            F.cross_entropy(functional_call(task.model, params, (known.x[rows],)), known.y[rows]).backward()
            optimizer.step()
        for name, value in params.items():
            torch.testing.assert_close(learned[name][shadow], value.detach(), rtol=1e-4, atol=1e-5)
    assert not any(value.requires_grad for value in learned.values())
    assert attack.shortened(7) == replace(attack, steps=7)
    attack.learn(task, seen, public(2), rng)
    with pytest.raises(AttackError, match="too few"):
        attack.learn(task, seen, public(1), rng)


def test_a_shadow_begins_as_torch_begins_and_leaves_the_network_and_its_draws_alone():
    seen, task, _, _ = asked()
    before, state = {name: value.clone() for name, value in task.model.named_parameters()}, torch.get_rng_state()
    first, again, other = (_reset(task, seen, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in task.model.named_parameters())
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert not torch.equal(value, other[name])
        assert not torch.equal(value, seen.params[name])
        assert not value.requires_grad


def test_lira_counts_standard_deviations_of_the_shadows():
    seen, task, about, _ = asked()
    stacked = {name: torch.stack([value + i * value.sign() / 9 for i in range(4)]) for name, value in seen.params.items()}
    found = LiRA(shadows=4).taught(stacked).believe(seen, task, about)
    each = torch.stack([odds(task, {name: value[i] for name, value in stacked.items()}, about) for i in range(4)])
    spread = each.var(0).mean().sqrt()
    torch.testing.assert_close(found.double(), (odds(task, seen.params, about) - each.mean(0)) / spread, rtol=1e-3, atol=1e-3)
    same = LiRA(shadows=2).taught({name: torch.stack([value, value]) for name, value in seen.params.items()})
    assert same.believe(seen, task, about).abs().max() < 1  # shadows without a spread divide nothing by zero


@pytest.mark.parametrize("missing", [False, True])
def test_a_series_compares_with_the_public_examples_of_the_class(missing):
    """Of a class without public examples, with all of them; where local steps are taken the network after them counts, too."""
    rule = LocalRule(kind="delta", batch_size=3, steps=2, lr=0.5, examples=3)
    seen, task, about, _ = asked(rule=rule)
    known = public()
    if missing:
        known = Public(known.x, torch.zeros_like(known.y))
    attack = adversary.build("series").taught({"x": known.x, "y": known.y})
    assert attack.learn(task, seen, known, None).keys() == {"x", "y"}
    rounds = []
    for params in (seen.params, base.after(seen)):
        scores = odds(task, params, Candidates(known.x, known.y))
        means = torch.stack([scores[known.y == one].mean() if (known.y == one).any() else scores.mean() for one in (0, 1)])
        rounds.append((odds(task, params, about) - means[about.y]) / (scores - means[known.y]).std())
    for times in (1, 2):
        plain = replace(seen, rule=LocalRule(batch_size=3)) if times == 1 else seen
        expected = torch.stack(rounds[:times]).mean(0)
        torch.testing.assert_close(attack.believe(plain, task, about).double(), expected, rtol=1e-3, atol=1e-3)


def test_public_examples_that_are_all_alike_divide_nothing_by_zero():
    seen, task, about, _ = asked()
    attack = adversary.build("series").taught({"x": about.x[:1].expand(4, -1), "y": about.y[:1].expand(4)})
    assert attack.believe(seen, task, about).isfinite().all()
