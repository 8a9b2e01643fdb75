"""How often any attack succeeds at most, against attackers who succeed as often as that."""

import pytest
import torch

from client_defenses import build
from client_defenses.tools.noise import Noise
from fl_app.analysis.bounds.results import Bounds
from fl_app.analysis.bounds.robustness import blind_rate, blow_up, reach, robustness


def test_the_likelihood_ratio_attains_the_limit(rng):
    """Two examples whose clipped gradients are opposite: the best guess is the sign, and blindly half of them are right."""
    noise = build("dp_gaussian(scale=0.8, clip=1.0)").noise_law()
    true = torch.randint(2, (40_000,), generator=rng) * 2.0 - 1
    gradient = torch.randn(5, generator=rng)
    gradient /= gradient.norm()
    for updates in (1, 3):
        sent = true[:, None, None] * gradient + 0.8 * torch.randn(40_000, updates, 5, generator=rng)
        right = ((sent.sum(1) @ gradient).sign() == true).double().mean().item()
        limit = robustness(noise, updates, updates, {15.0: 0.5}).limits[-1]
        assert right == pytest.approx(limit.one_update, abs=0.01)


def test_no_guess_among_many_passes_the_limit(rng):
    """Of many orthogonal gradients the nearest is the best guess."""
    for number, scale in ((4, 1.0), (50, 0.5), (50, 0.3)):
        true = torch.randint(number, (20_000,), generator=rng)
        sent = torch.eye(number)[true] + scale * torch.randn(20_000, number, generator=rng)
        right = (sent.argmax(1) == true).double().mean().item()
        assert 1 / number < right < blow_up(1 / number, reach(Noise(scale=scale, clip=1.0))) + 0.01


def test_what_an_example_can_move():
    assert reach(build("dp_sgd(noise=0.5, clip=3)").noise_law()) == pytest.approx(2)
    assert reach(build("ldpm(noise=0.5, clip=3)").noise_law()) == pytest.approx(1)
    assert reach(build("dp_gaussian(scale=0.5, clip=2)").noise_law()) == pytest.approx(4)
    assert reach(build("dp_sgd(noise=0.5) + prune").noise_law()) == pytest.approx(2)  # what follows takes only away
    for nothing in ("dp_gaussian(scale=0.5, clip=None)", "dp_laplace", "ppfa"):
        assert reach(build(nothing).noise_law()) is None
    for lawless in ("gradient_dropout", "latent_perturbation", "mask", "drop_fedsgd", "prune + dp_sgd", "dp_sgd(noise=0)"):
        assert build(lawless).noise_law() is None


def test_a_promise_of_nothing_is_said_in_one_sentence():
    def words(noise):
        found = robustness(noise, 1, 4, {20.0: 0.01})
        return Bounds(at="public", defense="", public=9, targets=[], smooth=True, no_noise="-", robustness=found).sentences()[
            -1
        ]

    assert "promises nothing here against attacks on any one example" in words(Noise(scale=0.01, clip=1.0, summed=True))
    kept = words(Noise(scale=1.0, clip=1.0))
    assert "Every attack on all examples of a batch together" in kept
    assert "any success 10.0% -> 38.9%, 76.4%" in kept  # four releases are one of half the noise
    assert "20 dB 1.0% -> 9.2%" in kept


def test_limits_go_from_blind_to_certain():
    assert blow_up(0.1, 0.0) == pytest.approx(0.1)
    assert blow_up(0.1, 1.0) == pytest.approx(0.389, abs=1e-3)  # Phi(-1.2816 + 1)
    assert blow_up(0.1, 50.0) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        blow_up(1.5, 1.0)


def test_the_blind_rate_counts_neighbours_of_the_same_class():
    x = torch.zeros(40, 1, 2, 2)
    x[:10] = 0.5
    x[20:] = torch.linspace(0.55, 1, 20)[:, None, None, None]
    y = torch.tensor([0] * 20 + [1] * 20)
    rate = blind_rate(x, y, 40.0)  # ten of each kind in class 0, whose best answer is near nine others; nobody in class 1
    assert 9 / 40 < rate < 18 / 40
    assert blind_rate(x, y, 100.0) == pytest.approx(rate)
    assert blind_rate(x[20:], y[20:], 40.0) == pytest.approx(1 - 0.05 ** (1 / 20))  # none: what 20 images can rule out
    assert blind_rate(x, y, 0.0) > 0.95
