"""MixUp and InstaHide: weights, labels, partners, flips."""

import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

import client_defenses
from client_defenses import Memory
from client_defenses.instahide import InstaHide
from client_defenses.mixup import MixUp, mixed_pairs, number_of_classes
from fl_app import models
from fl_app.core.local import Step
from fl_app.core.spec import SpecError

SHAPE = (1, 12, 12)


def make(rng, size=6, **settings):
    model = models.build("lenet", SHAPE, 5, **settings)
    y = torch.randint(5, (size,), generator=rng)
    return Step(models.parameters_of(model), model, torch.rand(size, *SHAPE, generator=rng), y)


@pytest.fixture
def step(rng):
    return make(rng)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_the_weight_of_mixup_is_a_beta(alpha):
    memory = Memory.fresh(11)
    drawn = [MixUp(alpha=alpha).weight(memory) for _ in range(2000)]
    assert stats.kstest(drawn, stats.beta(alpha, alpha).cdf).pvalue > 0.01
    assert stats.kstest(drawn, stats.beta(2 * alpha, 2 * alpha).cdf).pvalue < 1e-6  # it would notice


def test_mixup_mixes_inputs_and_labels_alike(step):
    sent = MixUp().on_batch(step, Memory.fresh(3))
    memory = Memory.fresh(3)
    partner, weight = torch.randperm(6, generator=memory.rng), MixUp().weight(memory)
    assert 0 < weight < 1
    hot = F.one_hot(step.y, 5).float()
    for i, j in enumerate(partner.tolist()):
        torch.testing.assert_close(sent.x[i], weight * step.x[i] + (1 - weight) * step.x[j])
        torch.testing.assert_close(sent.y[i], weight * hot[i] + (1 - weight) * hot[j])
    torch.testing.assert_close(sent.y.sum(1), torch.ones(6))
    assert sent.x.shape == step.x.shape
    again = MixUp().on_batch(sent, Memory.fresh(4))  # labels that are probabilities already
    torch.testing.assert_close(again.y.sum(1), torch.ones(6))


def test_a_weight_of_one_mixes_nothing(step):
    partner = torch.arange(5, -1, -1)
    same = mixed_pairs(step, 1.0, partner)
    assert torch.equal(same.x, step.x)
    assert torch.equal(same.y.argmax(1), step.y)
    for name, value in step.gradient().items():
        torch.testing.assert_close(same.gradient()[name], value)
    assert torch.equal(mixed_pairs(step, 0.0, partner).x, step.x.flip(0))


def test_mixup_of_nothing_or_one_example_is_the_identity(step, rng):
    assert MixUp(alpha=0.0).on_batch(step, Memory.fresh(0)) is step
    one = make(rng, size=1)
    assert MixUp().on_batch(one, Memory.fresh(0)) is one


def test_the_loss_of_mixed_labels_is_the_mixed_loss(step):
    partner = torch.randperm(6)
    sent = mixed_pairs(step, 0.3, partner)
    one, other = sent._replace(y=step.y).gradient(), sent._replace(y=step.y[partner]).gradient()
    for name, value in sent.gradient().items():
        torch.testing.assert_close(value, 0.3 * one[name] + 0.7 * other[name], atol=1e-6, rtol=1e-4)


def test_the_number_of_classes_leaves_no_trace(step):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 7), nn.BatchNorm1d(7))
    other = Step(models.parameters_of(model), model, step.x, step.y)
    state = torch.get_rng_state()
    assert number_of_classes(other) == 7
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model[3].running_mean, torch.zeros(7))
    assert number_of_classes(step) == 5


@pytest.mark.parametrize(("k", "c1"), [(4, 0.65), (6, 0.65), (2, 0.65), (6, 0.2), (3, 0.34), (4, 0.25), (5, 1.0)])
def test_the_weights_of_instahide_are_bounded_and_sum_to_one(k, c1):
    weights = InstaHide(k=k, c1=c1).weights(500, Memory.fresh(1))
    assert weights.shape == (500, k)
    torch.testing.assert_close(weights.sum(1), torch.ones(500))
    assert weights.min() >= -1e-6
    assert weights.max() <= c1 + 1e-6


@pytest.mark.parametrize(("k", "c1"), [(2, 0.65), (3, 0.45), (3, 0.65), (3, 0.7)])
def test_the_weights_of_instahide_are_uniform(k, c1):
    """Held against plain rejection from the simplex, on either side of where the way of drawing changes."""
    ours = InstaHide(k=k, c1=c1).weights(3000, Memory.fresh(1))
    plain = torch.distributions.Dirichlet(torch.ones(k))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        drawn = plain.sample((40000,))
    drawn = drawn[drawn.amax(1) <= c1][:3000]
    for feature in (lambda w: w[:, 0], lambda w: w.amax(1), lambda w: w[:, 0] - 2 * w[:, 1]):
        assert stats.ks_2samp(feature(ours).numpy(), feature(drawn).numpy()).pvalue > 0.005


def test_instahide_mixes_different_examples_the_first_its_own():
    members = InstaHide(k=4).members(9, Memory.fresh(1))
    assert torch.equal(members[:, 0], torch.arange(9))
    assert all(len(set(row)) == 4 for row in members.tolist())
    assert len({tuple(sorted(row)) for row in members.tolist()}) > 3
    assert InstaHide(k=4).members(2, Memory.fresh(1)).shape == (2, 2)


def test_instahide_without_signs_is_the_weighted_mean(step):
    defense = InstaHide(k=3, flip=False)
    sent, memory = defense.on_batch(step, Memory.fresh(2)), Memory.fresh(2)
    members, weights = defense.members(6, memory), defense.weights(6, memory)
    hot = F.one_hot(step.y, 5).float()
    for i in range(6):
        x = sum(w * step.x[j] for w, j in zip(weights[i], members[i].tolist(), strict=True))
        y = sum(w * hot[j] for w, j in zip(weights[i], members[i].tolist(), strict=True))
        torch.testing.assert_close(sent.x[i], x)
        torch.testing.assert_close(sent.y[i], y)
    torch.testing.assert_close(sent.y.sum(1), torch.ones(6))


@pytest.mark.parametrize(("center", "around"), [("mean", 0.3), (0.5, 0.5), (0.1, 0.1)])
def test_half_of_the_pixels_are_flipped_around_the_center(rng, center, around):
    step = make(rng, size=40, normalize=([0.3], [0.5]))
    mixed = InstaHide(flip=False).on_batch(step, Memory.fresh(2))
    sent = InstaHide(center=center).on_batch(step, Memory.fresh(2))
    torch.testing.assert_close((sent.x - around).abs(), (mixed.x - around).abs(), atol=1e-6, rtol=1e-5)
    flipped = ((sent.x - mixed.x).abs() > 1e-6).double()
    clear = ((mixed.x - around).abs() > 1e-3).double()
    assert abs((flipped * clear).sum() / clear.sum() - 0.5) < 0.03  # 5 standard deviations
    assert flipped.mean(0).std() < 0.15  # a mask of its own for each example
    assert torch.equal(sent.y, mixed.y)
    if center == 0.5:
        assert 0 <= sent.x.min() <= sent.x.max() <= 1
    if center == "mean":  # what the network sees only changes signs
        seen, before = step.model.normalize(sent.x), step.model.normalize(mixed.x)
        torch.testing.assert_close(seen.abs(), before.abs(), atol=1e-5, rtol=1e-4)


def test_small_cases_of_instahide(step, rng):
    assert InstaHide(k=1, flip=False).on_batch(step, Memory.fresh(0)) is step
    one = make(rng, size=1)
    sent = InstaHide().on_batch(one, Memory.fresh(0))
    assert torch.equal(sent.y, one.y)
    torch.testing.assert_close((sent.x - 0.5).abs(), (one.x - 0.5).abs())
    two = InstaHide().on_batch(make(rng, size=2), Memory.fresh(0))
    assert two.y.shape == (2, 5)
    with pytest.raises(SpecError, match="cannot sum to 1"):
        InstaHide(k=4, c1=0.2)
    with pytest.raises(SpecError, match="k"):
        InstaHide(k=17)


def test_they_chain_with_what_comes_after_the_gradient(step):
    for name in ("mixup", "instahide"):
        sent = client_defenses.build(f"{name} + prune(ratio=0.5)").protect(step, Memory.fresh(3))
        alone = client_defenses.build(name).protect(step, Memory.fresh(3))
        expected = client_defenses.build("prune(ratio=0.5)").transform(alone, Memory.fresh(0))
        assert all(torch.equal(sent[key], value) for key, value in expected.items())
    both = client_defenses.build("mixup + instahide + fedem(rho_max=0.5)").protect(step, Memory.fresh(3))
    assert all(value.isfinite().all() for value in both.values())


def test_two_examples_have_somebody_to_mix_with(rng):
    pair = make(rng, size=2)
    mixed = [MixUp().on_batch(pair, Memory.fresh(seed)) for seed in range(8)]
    assert all(one.y.shape == (2, 5) for one in mixed)
    assert any(not torch.equal(one.x, pair.x) for one in mixed)
