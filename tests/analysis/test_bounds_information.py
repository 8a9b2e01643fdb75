"""Bounds from noise against cases whose answer is known, and against our own attackers."""

import dataclasses
import math

import pytest
import torch
from torch import nn

import adversary
from adversary import Facts, Public
from client_defenses import Memory, build
from fl_app.analysis.bounds.identifiability import identifiability
from fl_app.analysis.bounds.information import bayesian, unbiased
from fl_app.analysis.bounds.prior import Prior, fitted, of_class
from fl_app.analysis.bounds.sensitivity import Sensitivity, random_directions
from fl_app.analysis.bounds.sent import plain, whitened
from fl_app.core.local import LocalRule, Step
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images

LAWS = ("dp_gaussian(scale=0.1)", "dp_laplace(scale=0.05)", "dp_sgd(noise=0.2)", "ppfa(budget=0.8)", "ldpm(noise=0.1)")
ATTACKED = ("dp_gaussian(scale=0.05)", "dp_laplace(scale=0.03)", "dp_sgd(noise=0.03)", "ppfa(budget=0.8)")
SHAPE = (1, 5, 5)


def linear(rng, entries, unknowns):
    matrix = torch.randn(entries, unknowns, generator=rng, dtype=torch.float64)
    return matrix, Sensitivity(lambda x: matrix @ x.flatten(), torch.zeros(1, unknowns, dtype=torch.float64))


def small_model(activation=nn.Sigmoid):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Flatten(), nn.Linear(25, 8), activation(), nn.Linear(8, 3)).double()
    return model, {name: value.detach() for name, value in model.named_parameters()}


def test_rank_and_spectrum_are_those_of_the_matrix(rng):
    matrix, map_ = linear(rng, 30, 12)
    values = torch.linalg.svdvals(matrix)
    found = identifiability(map_, 12, rng, norm=1.0)
    assert (found.rank_at_least, found.rank_at_most) == (12, 12)
    assert (found.largest, found.smallest) == pytest.approx((values[0].item(), values[-1].item()))
    assert map_.lanczos(12, rng)[0].item() == pytest.approx(values[0].item(), rel=1e-6)
    directions = random_directions(5, 12, rng)
    torch.testing.assert_close(map_.gram(directions), directions @ matrix.T @ matrix @ directions.T)


def test_products_by_vjp_are_those_of_the_kept_updates(rng, monkeypatch):
    _, map_ = linear(rng, 30, 12)
    directions = random_directions(5, 12, rng)
    kept = map_.gram(directions)
    monkeypatch.setattr("fl_app.analysis.bounds.sensitivity.KEPT", 0)
    torch.testing.assert_close(map_.gram(directions), kept)


def test_what_is_not_there_is_not_counted(rng):
    low = torch.randn(30, 4, generator=rng, dtype=torch.float64) @ torch.randn(4, 12, generator=rng, dtype=torch.float64)
    map_ = Sensitivity(lambda x: low @ x.flatten(), torch.zeros(12, dtype=torch.float64))
    exact, tried = identifiability(map_, 12, rng, norm=1.0), identifiability(map_, 8, rng, norm=1.0)
    assert (exact.rank_at_least, exact.rank_at_most) == (4, 4)
    assert (tried.rank_at_least, tried.rank_at_most, tried.directions) == (4, 12, 8)
    assert "at least 8 directions" in exact.sentence()
    assert len(map_.lanczos(12, rng)) <= 5  # there are four directions to find, and what is left at the start
    few = identifiability(linear(rng, 5, 12)[1], 8, rng, norm=1.0)
    assert few.sentence().startswith("5 equations for 12 unknowns: no attack without a prior can rebuild the batch")
    assert unbiased(map_, 12, rng).mse is None  # no unbiased attacker has a finite error


def test_least_squares_attains_the_bound_of_unbiased_attackers(rng):
    matrix, _ = linear(rng, 30, 6)
    s, x = 0.3, torch.rand(6, generator=rng, dtype=torch.float64)
    found = unbiased(Sensitivity(lambda x: matrix @ x / s, x), 6, rng)
    noisy = matrix @ x + s * torch.randn(4000, 30, generator=rng, dtype=torch.float64)
    error = (torch.linalg.lstsq(matrix, noisy.T).solution.T - x).square().mean().item()
    assert error == pytest.approx(found.mse, rel=0.05)
    assert found.leakage == pytest.approx(torch.linalg.svdvals(matrix)[0].item() / s)
    assert unbiased(Sensitivity(lambda x: matrix @ x / s, x), 5, rng).mse < found.mse * 1.5  # by the trace: about, and weaker


def test_the_posterior_mean_attains_the_bayesian_bound(rng):
    matrix, _ = linear(rng, 20, 30)  # fewer equations than unknowns: the prior says the rest
    s = 0.5
    prior = fitted(0.5 + torch.randn(300, 30, generator=rng).double() @ torch.randn(30, 30, generator=rng).double() / 20)
    found = bayesian(lambda x: Sensitivity(lambda x: matrix @ x / s, x), prior, 8, rng)
    spread = prior.basis.T @ prior.basis
    gain = spread @ matrix.T @ torch.linalg.inv(matrix @ spread @ matrix.T + s**2 * torch.eye(20, dtype=torch.float64))
    errors = []
    for _ in range(2000):
        x = prior.draw(rng)
        seen = matrix @ x + s * torch.randn(20, generator=rng, dtype=torch.float64)
        errors.append((prior.mean + gain @ (seen - matrix @ prior.mean) - x).square().mean().item())
    assert sum(errors) / len(errors) == pytest.approx(found.mse, rel=0.05)
    assert found.mse < found.blind
    part = bayesian(lambda x: Sensitivity(lambda x: matrix @ x / s, x), prior.leading(10), 8, rng)
    assert part.mse < found.mse  # who knows the rest already has less to get wrong


def test_where_the_map_is_bent_the_bound_stays_below_the_best_attacker(rng):
    """One unknown, whose posterior mean can be had by quadrature."""
    prior = Prior(torch.zeros(1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))
    grid = torch.linspace(-6, 6, 2001, dtype=torch.float64)
    density = (-grid.square() / 2).exp()
    for bent in (torch.sinh, lambda x: x + x**3, torch.sin):
        found = bayesian(lambda x, bent=bent: Sensitivity(lambda x: bent(x) / 0.5, x), prior, 64, rng)
        x = torch.randn(4000, generator=rng, dtype=torch.float64)
        seen = bent(x) + 0.5 * torch.randn(4000, generator=rng, dtype=torch.float64)
        weights = density * (-((seen[:, None] - bent(grid)) / 0.5).square() / 2).exp()
        best = ((weights @ grid) / weights.sum(1) - x).square().mean().item()
        assert 0.05 * best < found.mse < best


@pytest.mark.parametrize("text", LAWS)
def test_the_law_is_that_of_what_is_sent(text, rng):
    model, params = small_model()
    step = Step(params, model, torch.rand(4, *SHAPE, generator=rng).double(), torch.tensor([0, 1, 2, 1]))
    defense = build(text)
    law = defense.noise_law()
    gaps = {name: [] for name in params}
    for seed in range(300):
        mean, sent = defense.before_noise(step, Memory.fresh(seed)), defense.protect(step, Memory.fresh(seed))
        for name, value in mean.items():
            undone = sent[name] * (len(step.x) if law.summed else 1) / (3 if text[:4] == "ldpm" and name[0] == "3" else 1)
            scale = law.scale or law.relative * value.square().mean().sqrt()
            gaps[name].append((undone - value) / scale)
    every = torch.cat([torch.stack(value).flatten() for value in gaps.values()])
    assert every.mean().item() == pytest.approx(0, abs=0.02)
    assert every.square().mean().item() == pytest.approx(2.0 if law.kind == "laplace" else 1.0, rel=0.02)


def test_information_is_that_of_the_scores(rng):
    """E score score' by Monte Carlo, also where the size of the noise tells of x."""
    model, params = small_model()
    x, y = torch.rand(1, *SHAPE, generator=rng).double(), torch.tensor([1])
    direction = torch.randn(x.shape, generator=rng).double()
    for text in ("dp_gaussian(scale=0.1)", "dp_laplace(scale=0.1)", "ppfa(budget=0.5)"):
        defense = build(text)
        law = defense.noise_law()
        map_ = Sensitivity(whitened(model, params, y, defense, law, x, 0), x)
        found = map_.gram(direction.flatten()[None]).item()

        def parts(t, defense=defense, law=law):
            mean = defense.before_noise(Step(params, model, x + t * direction, y), Memory.fresh(0))
            scales = [law.scale or law.relative * value.square().mean().sqrt() for value in mean.values()]
            sizes = torch.cat([torch.full((value.numel(),), float(s)) for s, value in zip(scales, mean.values(), strict=True)])
            return torch.cat([value.flatten() for value in mean.values()]), sizes.double()

        (mean, size), (up, wide), (down, narrow) = parts(0.0), parts(1e-5), parts(-1e-5)
        draws = torch.randn(20000, len(mean), generator=rng).double()
        if law.kind == "laplace":
            # The score of Laplace noise depends on its sign alone.
            score = (draws.sign() * (up - down) / 2e-5 / size).sum(1)
        else:
            score = (draws * (up - down) / 2e-5 / size + (draws.square() - 1) * (wide / narrow).log() / 2e-5).sum(1)
        assert score.square().mean().item() == pytest.approx(found, rel=0.05), text


def test_a_batch_that_has_more_unknowns_than_equations_says_so(rng):
    model, params = small_model()
    x, y = torch.rand(12, *SHAPE, generator=rng).double(), torch.arange(12) % 3
    map_ = Sensitivity(plain(model, params, y, LocalRule(batch_size=12)), x)
    found = identifiability(map_, 300, rng, norm=1.0)
    assert (found.entries, found.unknowns) == (235, 300)
    assert found.rank_at_most < 235  # gradients by the class layer sum to zero
    assert "no attack without a prior" in found.sentence()


@pytest.mark.parametrize("text", ATTACKED)
def test_no_attack_of_ours_beats_the_bayesian_bound(text, rng, tmp_path):
    """Images that are drawn from the prior itself, attacked by those who know prior and noise."""
    model, params = small_model()
    basis = torch.linalg.qr(torch.randn(25, 8, generator=rng, dtype=torch.float64)).Q.T * 0.25
    law, label = Prior(torch.full((25,), 0.5, dtype=torch.float64), basis), torch.tensor([1])
    x = torch.stack([law.draw(rng) for _ in range(24)]).view(24, 1, *SHAPE)
    public = Public(torch.stack([law.draw(rng) for _ in range(600)]).view(600, *SHAPE).float(), torch.ones(600).long())
    defense = build(text)
    noise = defense.noise_law()

    def at(image):
        image = image.view(1, *SHAPE)
        return Sensitivity(whitened(model, params, label, defense, noise, image, 0), image)

    bound = bayesian(at, law, 32, rng)
    narrow = small_model()[0].float()
    weights = {name: value.float() for name, value in params.items()}
    seen = [
        Observation(
            params=weights,
            update=defense.protect(Step(weights, narrow, one.float(), label), Memory.fresh(number)),
            rule=LocalRule(batch_size=1),
            num_examples=1,
            server_round=1,
            client=number,
            knowledge=Knowledge(defense=text, labels=label),
        )
        for number, one in enumerate(x)
    ]
    task = Task(narrow, Images(SHAPE), 3)
    tried, best = 0, math.inf
    for one in adversary.build("cosine_lbfgs(iterations=60, labels=given)").informed(text, Facts(public=600)):
        attack = one.attack
        if attack.trained:
            attack = attack.prepare(task, seen[0], public, 0, tmp_path)
        guess = attack([dataclasses.replace(each) for each in seen], task, 0)
        errors = (guess.x.double() - x).square().flatten(1).mean(1)
        assert (errors.mean() + 2.5 * errors.std() / 24**0.5).item() > bound.mse, one.name
        tried, best = tried + 1, min(best, errors.mean().item())
    assert tried >= 2
    assert best < 0.9 * bound.blind  # they learn something, or nothing would be shown here


def test_a_prior_is_that_of_its_class(rng):
    x = torch.rand(130, *SHAPE, generator=rng)
    x[:, 0, 0] = 0  # pixels that are always the same are known
    y = torch.tensor([0] * 60 + [1] * 60 + [2] * 10)
    found = [of_class(x, y, label) for label in range(3)]
    torch.testing.assert_close(found[1].mean, x[60:120].flatten(1).double().mean(0))
    assert found[0].blind == pytest.approx(x[:60].flatten(1).double().var(0).mean().item())
    assert found[2].blind == pytest.approx(x.flatten(1).double().var(0).mean().item())  # ten images are too few
    assert len(found[0].basis) == 20
