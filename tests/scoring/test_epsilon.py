"""Lower bounds on epsilon: against formulas written down otherwise, and on mechanisms whose epsilon is known."""

import math

import pytest
import torch
from scipy import stats

from fl_app.scoring.epsilon import Errors, from_errors, from_errors_gaussian, from_guesses, p_value


def test_no_errors_refute_what_the_interval_allows():
    found = from_errors(Errors(0, 1000, 0, 1000), 1e-5)
    upper = 1 - 0.025 ** (1 / 1000)
    assert found == pytest.approx(math.log((1 - 1e-5 - upper) / upper))
    assert from_errors(Errors(1000, 1000, 0, 1000), 1e-5) == 0.0
    assert from_errors(Errors(500, 1000, 500, 1000), 1e-5) == 0.0
    assert from_errors_gaussian(Errors(500, 1000, 500, 1000), 1e-5) == 0.0


def test_known_gaussian_noise_gives_the_larger_bound_and_both_stay_below_the_truth():
    mu, n = 1.0, 10**6
    wrong = round(n * stats.norm.sf(mu / 2))
    errors = Errors(wrong, n, wrong, n)
    truth = 4.377  # epsilon of mu = 1 at 1e-5 (Dong et al. 2022)
    assert 0.7 < from_errors(errors, 1e-5) < from_errors_gaussian(errors, 1e-5) < truth
    assert from_errors_gaussian(errors, 1e-5) == pytest.approx(truth, rel=0.02)


def test_guesses_without_delta_are_a_binomial_test():
    found = from_guesses(100, 100, 90, 0.0)
    assert stats.binom.sf(89, 100, 1 / (1 + math.exp(-found))) == pytest.approx(0.05, rel=1e-2)
    assert from_guesses(100, 100, 50, 0.0) == 0.0
    assert from_guesses(100, 0, 0, 1e-5) == 0.0


def test_delta_only_weakens_what_is_refuted():
    values = [from_guesses(200, 50, 49, delta) for delta in (0.0, 1e-6, 1e-4, 1e-2)]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]


def test_the_p_value_with_delta_as_a_loop_has_it():
    share, total, worst = 1 / (1 + math.exp(-1.5)), 0.0, 0.0
    for i in range(1, 41):
        total += stats.binom.pmf(40 - i, 50, share)
        worst = max(worst, total / i)
    expected = stats.binom.sf(39, 50, share) + 2 * 80 * 1e-3 * worst
    assert p_value(80, 50, 40, 1.5, 1e-3) == pytest.approx(min(1.0, expected))


def test_randomised_response_is_hardly_ever_refuted(rng):
    epsilon, runs = 1.0, 200
    right = (torch.rand(runs, 100, generator=rng) < 1 / (1 + math.exp(-epsilon))).sum(1)
    refuted = sum(from_guesses(100, 100, int(one), 0.0) > epsilon for one in right)
    assert refuted <= 20  # 5 % are allowed: 10 of 200, and chance


@pytest.mark.parametrize("wrong", [(10, 11, 3), (10, 5, 6), (10, 5, -1)])
def test_impossible_guesses_are_refused(wrong):
    with pytest.raises(ValueError, match="cannot be right"):
        from_guesses(*wrong, 1e-5)
