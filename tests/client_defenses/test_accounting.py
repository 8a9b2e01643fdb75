"""Epsilon against published figures, exact formulas, and the way batches are really drawn."""

import math
import time
from collections import Counter
from itertools import pairwise

import pytest
from scipy.stats import norm

from client_defenses import build
from client_defenses.tools.accounting import epsilon, participations
from fl_app.core.local import LocalRule
from fl_app.core.spec import SpecError
from fl_app.data.batches import round_positions


def sgd(noise, **given):
    return epsilon(build(f"dp_sgd(noise={noise})"), **given)


def test_the_published_figures_of_the_mnist_tutorial():
    # TensorFlow Privacy, tutorials/README.md: 60,000 examples, batches of 256, delta 1e-5. Its conversion from Renyi DP was
    # the older one (Mironov 2017), so that today's figures are a little smaller.
    for noise, epochs, published in ((1.12, 60, 2.92), (1.2, 10, 1.20), (0.6, 30, 9.74)):
        steps = epochs * 60000 // 256
        got = sgd(noise, examples=60000, batch_size=256, steps=steps, delta=1e-5).sampled
        older = min(rdp * steps + math.log(1e5) / (order - 1) for order, rdp in zip(*curve(noise, 256 / 60000), strict=True))
        assert older == pytest.approx(published, abs=0.02)
        assert 0.7 * published < got < published


def curve(noise, rate):
    """(orders, Renyi DP of one step), by Opacus, at the orders that the tutorial takes."""
    from opacus.accountants.analysis.rdp import compute_rdp

    orders = [1 + x / 10 for x in range(1, 100)] + [float(x) for x in range(12, 64)]
    return orders, compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders)


def analytic_delta(eps, mu):
    """Balle & Wang 2018, Theorem 8, for sensitivity / noise = mu."""
    return norm.cdf(mu / 2 - eps / mu) - math.exp(eps + norm.logcdf(-mu / 2 - eps / mu))


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (2.0, 9), (0.5, 3), (30.0, 4)])
def test_without_amplification_it_is_the_analytic_gaussian_mechanism(noise, steps):
    # One batch holds all examples, so each takes part in every step.
    got = sgd(noise, examples=50, batch_size=50, steps=steps, delta=1e-5)
    assert analytic_delta(got.as_drawn, math.sqrt(steps) / noise) == pytest.approx(1e-5, rel=1e-3)
    assert got.as_drawn <= got.sampled  # the rate is 1: the same mechanism, composed exactly and by Renyi DP
    assert got.sampled < 1.3 * got.as_drawn + 0.2


def test_sampling_agrees_with_another_accountant():
    from opacus.accountants import PRVAccountant

    other = PRVAccountant()
    other.history = [(1.0, 0.01, 200)]
    exact = other.get_epsilon(delta=1e-5)
    got = sgd(1.0, examples=10000, batch_size=100, steps=200, delta=1e-5).sampled
    assert exact <= got < 1.5 * exact


def test_more_releases_cost_more_and_more_noise_less():
    given = {"examples": 1000, "batch_size": 100, "delta": 1e-5}
    by_steps = [sgd(1.0, steps=steps, **given) for steps in (0, 1, 2, 10, 11, 50, 500)]
    assert by_steps[0][:2] == (0, 0)
    assert all(a.sampled < b.sampled for a, b in pairwise(by_steps))
    assert all(a.as_drawn <= b.as_drawn for a, b in pairwise(by_steps))
    assert by_steps[3].as_drawn == by_steps[1].as_drawn < by_steps[4].as_drawn  # a second epoch begins with step 11
    by_noise = [sgd(noise, steps=50, **given) for noise in (0.01, 0.1, 1.0, 10.0, 1e6)]
    assert all(a.as_drawn > b.as_drawn and a.sampled > b.sampled for a, b in pairwise(by_noise))
    assert sgd(0.0, steps=1, **given)[:2] == (math.inf, math.inf)


@pytest.mark.parametrize(
    ("examples", "batch", "local_steps", "local_examples"),
    [
        (100, 10, 1, 0),
        (100, 60, 1, 0),
        (25, 8, 1, 0),
        (40, 8, 2, 0),
        (30, 4, 5, 10),
        (7, 3, 4, 5),
        (9, 20, 3, 0),
        (30, 7, 3, 5),
    ],
)
def test_participations_bound_the_real_schedule(examples, batch, local_steps, local_examples):
    local = {"lr": 1.0, "steps": local_steps, "examples": local_examples, "kind": "delta"}
    rule = LocalRule(batch_size=batch, **(local if local_steps > 1 else {}))
    every, seldom = Counter(), Counter()
    for server_round in range(1, 41):
        positions = round_positions(0, 0, server_round, rule.num_examples, examples).tolist()
        used = Counter(p for step in range(rule.steps) for p in positions[rule.batch(step, len(positions))])
        every += used
        seldom += used if server_round % 3 == 1 else Counter()
        given = {"local_steps": local_steps, "local_examples": local_examples}
        bound = participations(examples, batch, server_round * local_steps, **given)
        assert max(every.values()) <= bound
        asked = (server_round + 2) // 3
        assert max(seldom.values()) <= participations(examples, batch, asked * local_steps, server_rounds=server_round, **given)
    if local_steps == 1 and examples % batch == 0:
        assert max(every.values()) == bound  # it is not looser than it must be


def test_leaving_out_the_remainder_counts():
    # 100 examples in rounds of 60: every round is an epoch of its own, so three steps may use an example three times.
    assert participations(100, 60, 3) == 3


@pytest.mark.parametrize(
    ("times", "steps", "given"),
    [
        (1, 10, {}),
        (2, 11, {}),  # a second epoch has begun
        (2, 3, {"server_rounds": 15}),  # epochs go on while the client is not asked
        (3, 3, {"server_rounds": 99}),
        (1, 4, {"local_steps": 4}),
        (2, 15, {"examples": 30, "batch_size": 4, "local_steps": 5, "local_examples": 10}),  # twice around 10 examples
        (2, 2, {"examples": 9, "batch_size": 20, "local_steps": 3}),  # never more often than there were steps
    ],
)
def test_participations_are_no_looser_than_they_must_be(times, steps, given):
    settings = {"examples": 100, "batch_size": 10, "steps": steps, **given}
    assert participations(**settings) == times


def test_chains_and_defenses_without_a_promise():
    given = {"examples": 100, "batch_size": 10, "steps": 5, "delta": 1e-4}
    assert epsilon(build("dp_sgd + quantize"), **given) == epsilon(build("dp_sgd"), **given)
    for spec in ("none", "prune", "soteria", "prune + dp_sgd"):
        with pytest.raises(SpecError, match=r"promises no epsilon: use dp_sgd.*leave delta at 0"):
            epsilon(build(spec), **given)
    assert epsilon(build("dp_gaussian(scale=2.0, clip=1.0)"), **given)[:2] == epsilon(build("dp_sgd"), **given)[:2]
    with pytest.raises(SpecError, match="delta must lie between 0 and 1"):
        sgd(1.0, **{**given, "delta": 0.0})


def test_it_is_fast_enough_for_every_round_and_says_its_caveat():
    given = {"examples": 5000, "batch_size": 64, "delta": 1e-5}
    sgd(1.7, steps=1, **given)
    started = time.process_time()
    for server_round in range(1, 1001):
        last = sgd(1.7, steps=server_round, **given)
    assert (time.process_time() - started) / 1000 < 0.005
    assert "Poisson" in last.caveat


def test_huge_epsilons_are_still_numbers():
    got = sgd(0.02, examples=10, batch_size=10, steps=100, delta=1e-5)
    assert math.isfinite(got.as_drawn)
    assert got.as_drawn > 500
