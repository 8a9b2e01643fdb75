"""What each defense that works on a gradient promises: the properties of its paper, exactly or statistically."""

import math

import pytest
import torch
from scipy import stats
from torch.func import vmap

import client_defenses
from client_defenses import Chain, Memory
from client_defenses.clipping import clip, total_norm
from client_defenses.dp_gaussian import DPGaussian
from client_defenses.dp_laplace import DPLaplace, laplace
from client_defenses.drop_fedsgd import DropFedSGD, calibrate
from client_defenses.gradient_dropout import (
    GradientDropout,
    cosine_bound,
    expected_cosine,
    expected_squared_error,
    largest_p,
)
from client_defenses.mask import Mask
from client_defenses.prune import Prune, share, smallest
from client_defenses.quantize import Quantize, quantize
from client_defenses.sign import Sign
from fl_app import models
from fl_app.local import Step, loss_of
from fl_app.spec import SpecError


@pytest.fixture
def step(rng):
    model = models.build("lenet", (1, 28, 28), 10)
    return Step(models.parameters_of(model), model, torch.rand(4, 1, 28, 28, generator=rng), torch.arange(4))


@pytest.fixture
def grads(rng):
    """A matrix that is not contiguous, a vector, a number and nothing."""
    return {
        "matrix": torch.randn(40, 30, generator=rng).t(),
        "vector": 5 * torch.randn(101, generator=rng),
        "number": torch.randn((), generator=rng),
        "nothing": torch.zeros(0, 3),
    }


def flat(tensors):
    return torch.cat([value.reshape(-1) for value in tensors.values()])


def sent_by(defense, value, seed=0):
    return defense.transform({"g": value}, Memory.fresh(seed))["g"]


def like_normal(draws):
    return stats.kstest(draws.double().numpy(), "norm").pvalue > 0.01


# Settings


@pytest.mark.parametrize(
    ("spec", "setting"),
    [
        ("gradient_dropout(p=0.0)", "p"),
        ("gradient_dropout(p=1.1)", "p"),
        ("gradient_dropout(sigma=-1.0)", "sigma"),
        ("gradient_dropout(sigma='big')", "sigma"),
        ("gradient_dropout(sigma=1e999)", "sigma"),
        ("drop_fedsgd(p=-0.1)", "p"),
        ("drop_fedsgd(clip=0.0)", "clip"),
        ("drop_fedsgd(clip=None)", "clip"),
        ("drop_fedsgd(sigma=-0.1)", "sigma"),
        ("dp_gaussian(scale=-1.0)", "scale"),
        ("dp_gaussian(clip=0.0)", "clip"),
        ("dp_laplace(scale='1')", "scale"),
        ("dp_laplace(clip=-1.0)", "clip"),
        ("prune(ratio=1.5)", "ratio"),
        ("prune(scope='layer')", "scope"),
        ("prune(memory=1)", "memory"),
        ("quantize(bits=0)", "bits"),
        ("quantize(bits=33)", "bits"),
        ("quantize(bits=2.5)", "bits"),
        ("quantize(stochastic='yes')", "stochastic"),
        ("sign(scale='max')", "scale"),
        ("mask(ratio=-0.1)", "ratio"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_setting(spec, setting):
    with pytest.raises(SpecError, match=rf"{setting}=.* is not allowed"):
        client_defenses.build(spec)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "spec",
    [
        "gradient_dropout(p=1.0)",
        "dp_gaussian(scale=0.0, clip=None)",
        "dp_laplace(scale=0.0, clip=None)",
        "prune(ratio=0.0)",
        "prune(ratio=0.0, scope='tensor')",
        "quantize(bits=32)",
        "quantize(bits=32, stochastic=True)",
        "mask(ratio=0.0)",
    ],
)
def test_zero_strength_is_the_identity(spec, dtype, grads):
    given = {name: value.to(dtype) for name, value in grads.items()}
    sent = client_defenses.build(spec).transform(given, Memory.fresh(0))
    assert all(sent[name].dtype == dtype and torch.equal(sent[name], value) for name, value in given.items())


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


# Noise


@pytest.mark.parametrize(("defense", "law"), [(DPGaussian, "norm"), (DPLaplace, "laplace")])
def test_the_noise_has_its_law_and_its_scale(defense, law, grads):
    given = {**grads, "large": torch.zeros(50, 400)}
    clipped = clip(given, 0.5)
    sent = defense(scale=0.3, clip=0.5).transform(given, Memory.fresh(0))
    noise = flat({name: sent[name] - clipped[name] for name in sent}) / 0.3
    assert stats.kstest(noise.double().numpy(), law).pvalue > 0.01
    assert abs(stats.pearsonr(noise, flat(clipped)).statistic) < 4.5 / math.sqrt(len(noise))
    unclipped = defense(scale=0.3, clip=None).transform(given, Memory.fresh(0))
    torch.testing.assert_close(flat(unclipped) - flat(given), 0.3 * noise, atol=1e-5, rtol=0)


@pytest.mark.parametrize("defense", [DPGaussian, DPLaplace])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_clipping_bounds_the_norm_and_spares_what_is_within(defense, dtype, grads):
    given = {name: value.to(dtype) for name, value in grads.items()}
    norm = total_norm(given).item()
    sent = defense(scale=0.0, clip=norm / 7).transform(given, Memory.fresh(0))
    assert total_norm(sent) == pytest.approx(norm / 7, rel=1e-4 if dtype == torch.float16 else 1e-6)
    within = defense(scale=0.0, clip=norm * 1.01).transform(given, Memory.fresh(0))
    assert all(torch.equal(within[name], value) for name, value in given.items())


def test_laplace_draws_are_finite_and_symmetric_at_the_ends():
    ends = laplace(torch.tensor([0.0, 1 - 2.0**-24]))
    assert ends.tolist() == pytest.approx([-24 * math.log(2), 24 * math.log(2)])
    middle = laplace(torch.tensor([0.5 - 2.0**-24, 0.5]))
    assert middle[0] == -middle[1] != 0
    drawn = torch.rand(100_000, generator=torch.Generator().manual_seed(0)) * 2**24
    assert torch.equal(drawn, drawn.round())  # what the centring relies on


def test_only_a_clipped_gaussian_has_a_noise_multiplier():
    assert DPGaussian(scale=3.0, clip=0.5).noise_multiplier() == 3.0
    assert DPGaussian(scale=3.0, clip=None).noise_multiplier() is None
    assert DPGaussian(scale=0.0).noise_multiplier() is None
    assert DPLaplace().noise_multiplier() is None


# Pruning and masking


def test_a_share_is_counted_as_it_is_written():
    assert [share(0.29, 100), share(0.57, 100), share(0.999, 10), share(0.1, 9), share(1.0, 7)] == [29, 57, 9, 0, 7]
    assert share(0.9, 11_181_642) == 10_063_477


@pytest.mark.parametrize("ratio", [0.1, 0.29, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_pruning_zeroes_an_exact_count_of_the_smallest(ratio, scope, grads):
    sent = Prune(ratio=ratio, scope=scope).transform(grads, Memory.fresh(0))
    groups = [(flat(sent), flat(grads))]
    if scope == "tensor":
        groups = [(sent[name].reshape(-1), value.reshape(-1)) for name, value in grads.items()]
    for after, before in groups:
        gone = after == 0
        assert gone.sum() == share(ratio, len(before))
        assert torch.equal(after[~gone], before[~gone])
        if 0 < gone.sum() < len(before):
            assert before[gone].abs().max() <= before[~gone].abs().min()


def test_pruning_decides_ties_by_position():
    tied = torch.tensor([2.0, -1.0, 1.0, 1.0, -1.0, 0.0])
    assert sent_by(Prune(ratio=0.5), tied).tolist() == [2, 0, 0, 1, -1, 0]
    assert sent_by(Prune(ratio=0.7), torch.ones(10)).tolist() == [0] * 7 + [1] * 3
    assert smallest(torch.zeros(5), 0).sum() == 0


def test_an_attacker_expects_the_pruned_gradient_with_the_slope_of_what_is_kept(grads):
    for scope in ("global", "tensor"):
        defense = Prune(ratio=0.6, scope=scope)
        sent, expected = defense.transform(grads, Memory.fresh(0)), defense.expected(grads)
        assert all(torch.equal(sent[name], expected[name]) for name in grads)
    leaf = torch.tensor([3.0, -1.0, 2.0], requires_grad=True)
    Prune(ratio=0.5).expected({"g": leaf})["g"].sum().backward()
    assert leaf.grad.tolist() == [1, 0, 1]


@pytest.mark.parametrize("ratio", [0.25, 0.9, 1.0])
def test_masking_zeroes_an_exact_random_share_and_leaves_the_rest(ratio, grads):
    memory = Memory.fresh(0)
    first, second = (flat(Mask(ratio=ratio).transform(grads, memory)) for _ in range(2))
    for sent in (first, second):
        assert (sent == 0).sum() == share(ratio, len(sent))
        assert torch.equal(sent[sent != 0], flat(grads)[sent != 0])
    assert torch.equal(first, second) == (ratio == 1)  # a new mask each step


def test_every_entry_is_masked_equally_often():
    memory, size, steps = Memory.fresh(0), 12, 4000
    zeros = sum((Mask(ratio=0.25).transform({"g": torch.ones(size)}, memory)["g"] == 0).double() for _ in range(steps))
    # The counts sum to a constant, hence size - 1 degrees of freedom and the variance of draws without replacement.
    assert stats.chi2.sf(((zeros - steps / 4).square().sum() / (steps * 0.1875) * (size - 1) / size).item(), size - 1) > 0.01


# Quantisation and signs


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 12])
def test_quantisation_is_a_uniform_grid_with_half_a_step_of_error(bits, rng):
    value = torch.randn(500, 400, generator=rng)
    largest, step = value.abs().max(), value.abs().max() / (2 ** (bits - 1) - 1)
    sent = sent_by(Quantize(bits=bits), value)
    levels = sent / step
    torch.testing.assert_close(levels, levels.round(), atol=1e-3, rtol=0)
    assert 2 < len(sent.unique()) <= 2**bits - 1
    assert (sent - value).abs().max() <= step / 2 * 1.001
    assert sent.abs().max() == largest
    assert torch.equal(sent_by(Quantize(bits=bits), sent), sent)
    assert torch.equal(sent_by(Quantize(bits=bits), -value), -sent)


def test_two_bits_by_hand():
    value = torch.tensor([-4.0, -2.1, -1.9, 0.0, 1.9, 2.1, 4.0])
    assert quantize(value, 2).tolist() == [-4, -4, 0, 0, 0, 4, 4]


def test_one_bit_is_the_two_ends_of_the_range():
    value = torch.tensor([-4.0, -0.1, 0.0, 0.1, 2.0])
    assert quantize(value, 1).tolist() == [-4, -4, 0, 4, 4]
    drawn = sent_by(Quantize(bits=1, stochastic=True), value.expand(20_000, -1))
    assert set(drawn.unique().tolist()) == {-4.0, 4.0}
    assert torch.all((drawn.mean(0) - value).abs() < 4.5 * 4 / math.sqrt(20_000))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_stochastic_rounding_is_unbiased_and_within_one_step(bits, rng):
    value = torch.randn(50, generator=rng)
    step = value.abs().max() / (2 ** (bits - 1) - 1)
    sent = sent_by(Quantize(bits=bits, stochastic=True), value.expand(20_000, -1))
    assert (sent - value).abs().max() <= step * 1.001
    assert torch.all((sent.mean(0) - value).abs() < 4.5 * step / 2 / math.sqrt(20_000) + 1e-5)
    assert sent.abs().max() <= value.abs().max()
    assert (sent != sent[0]).any()


@pytest.mark.parametrize("bits", [20, 24, 28, 31])
@pytest.mark.parametrize("stochastic", [False, True])
def test_many_bits_stay_in_range_and_close(bits, stochastic, rng):
    value = torch.randn(200_000, generator=rng)
    sent = sent_by(Quantize(bits=bits, stochastic=stochastic), value)
    assert sent.abs().max() == value.abs().max()
    torch.testing.assert_close(sent, value, atol=float(value.abs().max()) / 2 ** (bits - 1), rtol=1e-6)
    ends = torch.tensor([1.0, -1.0])
    assert torch.equal(quantize(ends, bits, torch.full((2,), 1 - 2.0**-24)), ends)  # the largest draw there is


@pytest.mark.parametrize("bits", [1, 2, 8, 32])
@pytest.mark.parametrize("stochastic", [False, True])
def test_quantising_zeros_and_tiny_values_stays_finite(bits, stochastic):
    defense = Quantize(bits=bits, stochastic=stochastic)
    assert torch.all(sent_by(defense, torch.zeros(3, 2)) == 0)
    assert sent_by(defense, torch.tensor([1e-40, -1e-41])).isfinite().all()


def test_signs_are_sent_with_the_mean_size_of_their_tensor_or_without():
    grads = {"a": torch.tensor([[3.0, -1.0], [0.0, 4.0]]), "b": torch.tensor(-0.5)}
    sent = Sign().transform(grads, Memory.fresh(0))
    assert sent["a"].tolist() == [[2, -2], [0, 2]]
    assert sent["b"].item() == -0.5
    sent = Sign(scale="none").transform(grads, Memory.fresh(0))
    assert (sent["a"].tolist(), sent["b"].item()) == ([[1, -1], [0, 1]], -1)


@pytest.mark.parametrize("spec", ["quantize(bits=3)", "quantize(bits=1)", "sign", "sign(scale='none')"])
def test_an_attacker_expects_the_compressed_value_and_passes_slopes_straight_through(spec, grads):
    defense = client_defenses.build(spec)
    leaves = {name: value.clone().requires_grad_() for name, value in grads.items()}
    expected, sent = defense.expected(leaves), defense.transform(grads, Memory.fresh(0))
    for name in grads:
        torch.testing.assert_close(expected[name].detach(), sent[name])
    flat(expected).sum().backward()
    assert all(torch.all(leaf.grad == 1) for leaf in leaves.values())
    several = {"g": torch.stack([grads["vector"], 9 * grads["vector"], 0 * grads["vector"]])}
    each = vmap(defense.expected)(several)["g"]  # a largest or mean size for each guess, not for all of them together
    torch.testing.assert_close(each[1], defense.expected({"g": several["g"][1]})["g"])
    assert torch.all(each[2] == 0)


def test_an_attacker_expects_the_scale_of_dropout_and_the_clipping_of_noise(grads):
    for name, value in GradientDropout(p=0.5).expected(grads).items():
        assert torch.equal(value, 2 * grads[name])
    for defense in (DPGaussian(clip=0.1), DPLaplace(clip=0.1), DropFedSGD(clip=0.1)):
        assert total_norm(defense.expected(grads)) == pytest.approx(0.1, rel=1e-5)
    assert DPGaussian(clip=None).expected(grads) is grads
    for name, value in Quantize(stochastic=True).expected(grads).items():  # unbiased
        assert torch.equal(value, grads[name])


# Error feedback

REMEMBERING = ["prune(memory=True)", "prune(memory=True, scope='tensor')", "quantize(bits=2, memory=True)"]
REMEMBERING += ["quantize(bits=2, memory=True, stochastic=True)", "sign(memory=True)"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("spec", REMEMBERING)
def test_what_is_sent_and_what_is_kept_sum_to_the_gradients(spec, dtype, grads, rng):
    for defense, prefix in (
        (client_defenses.build(spec), ""),
        (Chain(parts=(client_defenses.build("none"), client_defenses.build(spec))), "1/"),
    ):
        memory = Memory.fresh(0)
        given, sent = ({name: torch.zeros(value.shape) for name, value in grads.items()} for _ in range(2))
        for _ in range(20):
            message = {name: torch.randn(value.shape, generator=rng).to(dtype) for name, value in grads.items()}
            answer = defense.transform(message, memory)
            assert all(value.dtype == dtype for value in answer.values())
            for name in grads:
                given[name] += message[name].float()
                sent[name] += answer[name].float()
        assert set(memory.state) == {f"{prefix}residual/{name}" for name in grads}
        for name in grads:
            residual = memory.state[f"{prefix}residual/{name}"]
            torch.testing.assert_close(sent[name] + residual, given[name], atol=1e-4, rtol=0)


@pytest.mark.parametrize("spec", ["prune", "quantize", "quantize(stochastic=True)", "sign"])
def test_nothing_is_remembered_unless_told_to(spec, grads):
    memory = Memory.fresh(0)
    client_defenses.build(spec).transform(grads, memory)
    assert memory.state == {}


def distance_after(defense, first, second, start):
    """How far from its minimum at zero SGD ends that follows the gradients of two summands of a quadratic in turn."""
    memory, weights = Memory.fresh(0), torch.tensor(start)
    for i in range(2000):
        grad = (first, second)[i % 2](weights)
        weights = weights - 0.02 * defense.transform({"w": grad}, memory)["w"]
    return weights.norm().item()


def test_error_feedback_converges_where_plain_signs_and_pruning_stand_still():
    # <a, w>²/2 and <b, w>²/2: the signs of both gradients are along (1, -1), so plain signs never change the sum of w.
    a, b = torch.tensor([1.5, -0.5]), torch.tensor([-0.5, 1.5])
    lines = lambda w: (a @ w) * a, lambda w: (b @ w) * b, [1.0, 1.0]
    assert distance_after(Sign(), *lines) > 1
    assert distance_after(Sign(memory=True), *lines) < 0.05
    # |w|²/2 plus or minus 10 w1, which cancel: the first entry is always the larger, so plain pruning never sends the second.
    shift = torch.tensor([10.0, 0.0])
    shifts = lambda w: w + shift, lambda w: w - shift, [0.0, 1.0]
    assert distance_after(Prune(ratio=0.5), *shifts) > 0.9
    assert distance_after(Prune(ratio=0.5, memory=True), *shifts) < 0.3


def test_one_bad_gradient_does_not_spoil_the_memory():
    for spec in REMEMBERING:
        defense, memory = client_defenses.build(spec), Memory.fresh(0)
        for bad in (math.nan, math.inf):
            defense.transform({"g": torch.tensor([1.0, bad, 3.0])}, memory)
            assert defense.transform({"g": torch.ones(3)}, memory)["g"].isfinite().all()
