"""Gradient Dropout and Drop-FedSGD: what is kept, what stands in for the rest, and their theorems."""

import math

import pytest
import torch
from scipy import stats

from client_defenses import Memory
from client_defenses.drop_fedsgd import DropFedSGD, calibrate
from client_defenses.gradient_dropout import (
    GradientDropout,
    cosine_bound,
    expected_cosine,
    expected_squared_error,
    largest_p,
)
from client_defenses.tools.clipping import clip, total_norm
from fl_app import models
from fl_app.core.local import Step, loss_of
from helpers.defenses import like_normal, sent_by


@pytest.fixture
def step(rng):
    model = models.build("lenet", (1, 28, 28), 10)
    return Step(models.parameters_of(model), model, torch.rand(4, 1, 28, 28, generator=rng), torch.arange(4))


# Gradient Dropout


@pytest.mark.parametrize(("p", "sigma"), [(0.9, 5e-3), (0.3, 0.5), (0.6, "match")])
def test_gradient_dropout_is_unbiased_with_the_exact_squared_error(p, sigma, rng):
    draws, grad = 20_000, torch.randn(40, generator=rng)
    sent = sent_by(GradientDropout(p=p, sigma=sigma), grad.expand(draws, -1))
    error = expected_squared_error(grad, p, float(grad.std(correction=0)) if sigma == "match" else sigma)
    assert torch.all((sent.mean(0) - grad).abs() < 4.5 * (error / draws).sqrt())
    squares = (sent - grad).square()
    assert torch.all((squares.mean(0) - error).abs() < 4.5 * squares.std(0) / math.sqrt(draws))


def test_the_squared_error_of_gradient_dropout_by_hand():
    # p (g/p - g)² + (1-p) (g² + sigma²) with g = 3, p = 1/4, sigma = 2: 81/4 + 3/4 * 13
    assert expected_squared_error(torch.tensor(3.0), 0.25, 2.0).item() == pytest.approx(30.0)


@pytest.mark.parametrize("sigma", [5e-3, "match"])
def test_what_gradient_dropout_keeps_is_exact_and_the_rest_are_normal_decoys(sigma, rng):
    grad = 0.1 * torch.randn(200, 300, generator=rng)
    sent = sent_by(GradientDropout(p=0.7, sigma=sigma), grad)
    kept = sent == grad / 0.7
    assert abs(kept.float().mean() - 0.7) < 4.5 * math.sqrt(0.21 / grad.numel())
    scale = grad.std(correction=0) if sigma == "match" else sigma
    assert like_normal(sent[~kept] / scale)
    assert abs(stats.pearsonr(sent[~kept], grad[~kept]).statistic) < 4.5 / math.sqrt((~kept).sum())


def test_a_tensor_of_one_entry_has_decoys_without_spread():
    sent = [sent_by(GradientDropout(p=0.5, sigma="match"), torch.tensor([3.0]), seed).item() for seed in range(20)]
    assert set(sent) == {6.0, 0.0}


def test_matching_decoys_have_the_spread_of_their_own_tensor(rng):
    grads = {"small": 1e-3 * torch.randn(20_000, generator=rng), "large": 10 * torch.randn(20_000, generator=rng)}
    sent = GradientDropout(p=0.01, sigma="match").transform(grads, Memory.fresh(0))
    for name, value in grads.items():
        decoys = sent[name][sent[name] != value / 0.01]
        assert decoys.std().item() == pytest.approx(value.std().item(), rel=0.03)


@pytest.mark.parametrize(("p", "sigma"), [(0.9, 5e-3), (0.6, 5e-2), (0.2, 1.0)])
def test_the_cosine_of_gradient_dropout_concentrates_where_theorem_4_says(p, sigma, rng):
    grad = 0.02 * torch.randn(400_000, generator=rng)
    cosine = torch.cosine_similarity(sent_by(GradientDropout(p=p, sigma=sigma), grad), grad, dim=0)
    value = expected_cosine(grad.norm().item(), grad.numel(), p, sigma)
    assert cosine == pytest.approx(value, abs=0.005)
    assert value <= cosine_bound(p)
    assert expected_cosine(3.0, 7, p, 0.0) == pytest.approx(cosine_bound(p))  # without noise the bound is reached


def test_theorem_1_gives_the_largest_p_and_it_is_tight():
    assert largest_p(1e-5, 5e-3) == pytest.approx(0.6)  # 1 - 1e-5 / 2.5e-5
    assert largest_p(0.0, 1.0) == 1
    nothing = torch.zeros(400_000)  # the gradient for which the guarantee is hardest
    for p, above in ((0.58, True), (0.62, False)):
        assert (expected_squared_error(nothing, p, 5e-3).mean() > 1e-5) == above
        assert (sent_by(GradientDropout(p=p, sigma=5e-3), nothing).square().mean() > 1e-5) == above
    with pytest.raises(ValueError, match=r"no p guarantees a loss above 0\.3 with sigma=0\.5"):
        largest_p(0.3, 0.5)
    with pytest.raises(ValueError, match="sigma above 0"):
        largest_p(0.1, 0.0)


# Drop-FedSGD


def dropped_by(defense, step, seed):
    """The masks that a seed gives."""
    memory = Memory.fresh(seed)
    return {name: memory.uniform(value) < defense.p for name, value in step.params.items()}


@pytest.mark.parametrize("bound", [0.05, 100.0])
def test_drop_fedsgd_sends_the_clipped_gradient_of_the_masked_model_and_noise(bound, step):
    defense = DropFedSGD(p=0.3, clip=bound, sigma=0.2)
    sent, dropped = defense.protect(step, Memory.fresh(3)), dropped_by(defense, step, 3)
    # The paper's own formula: L(w - w * M), differentiated by w.
    leaves = {name: value.clone().requires_grad_() for name, value in step.params.items()}
    thinned = {name: value - value * dropped[name] for name, value in leaves.items()}
    found = torch.autograd.grad(loss_of(step.model, thinned, step.x, step.y), list(leaves.values()))
    true = clip(dict(zip(leaves, found, strict=True)), bound)
    assert all(torch.equal(sent[name][~dropped[name]], true[name][~dropped[name]]) for name in sent)
    kept = torch.cat([value[~dropped[name]] for name, value in sent.items()])
    assert kept.norm().item() == pytest.approx(0.05, rel=1e-5) if bound == 0.05 else 1 < kept.norm() < bound
    noise = torch.cat([value[dropped[name]] for name, value in sent.items()])
    assert abs(len(noise) / (len(noise) + len(kept)) - 0.3) < 0.02
    assert like_normal(noise / (0.2 * bound))


def test_the_entries_of_dropped_weights_do_not_count_in_the_norm_that_is_clipped(step):
    """The bound lies between the norm of the kept entries and that of all: then nothing is clipped."""
    defense = DropFedSGD(p=0.5, sigma=3.0)
    dropped = dropped_by(defense, step, 3)
    thinned = {name: value.masked_fill(dropped[name], 0) for name, value in step.params.items()}
    grads = step._replace(params=thinned).gradient()
    kept = torch.cat([value[~dropped[name]] for name, value in grads.items()])
    bound = (kept.norm() * total_norm(grads)).sqrt().item()
    assert 1.1 * kept.norm() < bound < total_norm(grads) / 1.1
    sent = DropFedSGD(p=0.5, sigma=3.0, clip=bound).protect(step, Memory.fresh(3))
    assert torch.equal(torch.cat([value[~dropped[name]] for name, value in sent.items()]), kept)
    assert total_norm(sent) > 10 * bound  # nor does the noise, which comes afterwards


def test_the_noise_of_drop_fedsgd_says_nothing_about_the_data(step):
    defense = DropFedSGD(p=0.3)
    one, other = (defense.protect(each, Memory.fresh(3)) for each in (step, step._replace(x=1 - step.x, y=step.y + 1)))
    for name, dropped in dropped_by(defense, step, 3).items():
        assert torch.equal(one[name][dropped], other[name][dropped])
        assert not torch.equal(one[name][~dropped], other[name][~dropped])


def test_drop_fedsgd_without_dropping_only_clips(step):
    sent, plain = DropFedSGD(p=0.0, clip=0.05).protect(step, Memory.fresh(0)), clip(step.gradient(), 0.05)
    assert all(torch.equal(sent[name], plain[name]) for name in plain)
    assert total_norm(sent) == pytest.approx(0.05, rel=1e-5)


def test_the_calculator_of_drop_fedsgd_says_what_its_number_is_not():
    # p = 0.1, delta = 0.5: 1.25 * 0.81 / (0.5 - 0.19) = 3.26613, sqrt(2 ln) = 1.538574
    sigma, caveat = calibrate(epsilon=0.5, delta=0.5, p=0.1, sensitivity=1.0)
    assert sigma == pytest.approx(1.538574 / 0.5, rel=1e-6)
    assert calibrate(0.5, 0.5, 0.1).sigma == pytest.approx(2 * sigma)
    for words in ("Not an ordinary differential privacy guarantee", "leave without noise", "delta > 1-(1-p)² = 0.19"):
        assert words in caveat
    # Nothing dropped: the classical Gaussian mechanism.
    assert calibrate(1.0, 1e-5, 1e-12, 1.0).sigma == pytest.approx(math.sqrt(2 * math.log(1.25e5)), rel=1e-6)
    assert DropFedSGD(sigma=sigma).noise_multiplier() is None


@pytest.mark.parametrize(("delta", "p"), [(1e-5, 0.05), (0.0975, 0.05), (1.0, 0.05)])
def test_the_calculator_of_drop_fedsgd_refuses_a_delta_outside_its_theorem(delta, p):
    with pytest.raises(ValueError, match=r"needs a delta between 1-\(1-p\)² = 0.0975 and 1"):
        calibrate(1.0, delta, p)
    with pytest.raises(ValueError, match="must be above 0"):
        calibrate(0.0, 0.5, p)
