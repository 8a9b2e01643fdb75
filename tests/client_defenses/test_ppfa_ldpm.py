"""The two baselines of FedEM, in our reading."""

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from client_defenses import Memory, build
from client_defenses.ldpm import LDPM
from client_defenses.ppfa import PPFA, gaussian_distance, noise_for
from fl_app import models
from fl_app.core.local import Step

BUDGETS = (0.995, 0.99, 0.98, 0.97, 0.8)


@pytest.fixture
def step(rng):
    model = models.build("lenet", (1, 16, 16), 10)
    return Step(models.parameters_of(model), model, torch.rand(6, 1, 16, 16, generator=rng), torch.arange(6))


@pytest.mark.parametrize("growth", [1.001, 1.5, 4.0, 100.0])
def test_the_total_variation_is_the_integral(growth):
    gap, _ = quad(lambda v: abs(norm.pdf(v) - norm.pdf(v, scale=growth**0.5)) / 2, -200, 200, limit=500, points=[-3, 0, 3])
    assert gaussian_distance(growth) == pytest.approx(gap, abs=1e-6)
    assert gaussian_distance(1.0) == 0


def test_the_noise_uses_up_the_budget():
    for budget in BUDGETS:
        assert gaussian_distance(1 + noise_for(budget) ** 2) == pytest.approx(1 - budget, rel=1e-6)
    assert sorted(map(noise_for, BUDGETS)) == [noise_for(budget) for budget in BUDGETS]
    assert noise_for(1.0) == 0


def test_ppfa_noise_follows_each_tensor_and_a_budget_of_one_is_the_identity():
    draw = torch.Generator().manual_seed(0)
    grads = {"small": 1e-3 * torch.randn(20000, generator=draw), "large": 10 * torch.randn(100, 200, generator=draw)}
    sent = PPFA(budget=0.9).transform(grads, Memory.fresh(0))
    for name, value in grads.items():
        assert ((sent[name] - value).std() / value.std()).item() == pytest.approx(noise_for(0.9), rel=0.03)
    same = PPFA(budget=1.0).transform(grads, Memory.fresh(0))
    assert all(torch.equal(same[name], grads[name]) for name in grads)
    half = PPFA().transform({"a": torch.ones(3, dtype=torch.float16)}, Memory.fresh(0))
    assert half["a"].dtype == torch.float16
    assert PPFA().noise_multiplier() is None


def test_ldpm_keeps_one_row_of_each_example_and_is_right_on_average(step):
    big = LDPM(clip=1e6, noise=0.0)
    one = Step(step.params, step.model, step.x[:1], step.y[:1])
    plain = one.gradient()
    sent = big.gradient(one, Memory.fresh(0))
    rows = sent["fc.weight"].any(1).nonzero().flatten()
    assert len(rows) == 1
    torch.testing.assert_close(sent["fc.weight"][rows], 10 * plain["fc.weight"][rows])
    torch.testing.assert_close(sent["fc.bias"][rows], 10 * plain["fc.bias"][rows])
    assert sent["fc.bias"].count_nonzero() == 1
    torch.testing.assert_close(sent["conv1.weight"], plain["conv1.weight"])
    memory = Memory.fresh(0)
    draws = torch.stack([big.gradient(step, memory)["fc.bias"] for _ in range(400)])
    expected = step.gradient()["fc.bias"]
    assert ((draws.mean(0) - expected).abs() < 4.5 * draws.std(0) / 400**0.5 + 1e-6).all()


def test_ldpm_draws_any_row(step):
    drawn = [LDPM()._rows(step, Memory.fresh(seed))[0][1] for seed in range(100)]
    assert set(torch.cat(drawn).tolist()) == set(range(10))


def test_ldpm_bounds_what_a_replaced_example_can_change_and_says_the_noise(step):
    quiet = LDPM(clip=0.02, noise=0.0)

    def total(step):
        sent = quiet.gradient(step, Memory.fresh(1))
        return torch.cat([(value * 6 / (10 if key.startswith("fc.") else 1)).flatten() for key, value in sent.items()])

    other = step._replace(x=torch.cat([1 - step.x[:1], step.x[1:]]), y=torch.cat([step.y[:1] + 5, step.y[1:]]))
    assert 0 < (total(step) - total(other)).norm() <= 2 * 0.02 * (1 + 1e-4)
    loud = LDPM(clip=0.02, noise=50.0)
    noise = loud.gradient(step, Memory.fresh(1))["conv2.weight"] - quiet.gradient(step, Memory.fresh(1))["conv2.weight"]
    assert noise.std().item() == pytest.approx(2 * 0.02 * 50 / 6, rel=0.05)
    assert loud.noise_multiplier() == 50


def test_ldpm_takes_the_same_way_for_models_without_formulas(monkeypatch, step):
    fast = build("ldpm").gradient(step, Memory.fresh(2))
    monkeypatch.setattr("client_defenses.tools.per_example.by_layers", lambda *_: None)
    slow = build("ldpm").gradient(step, Memory.fresh(2))
    for name in fast:
        torch.testing.assert_close(fast[name], slow[name], rtol=1e-4, atol=1e-6)
