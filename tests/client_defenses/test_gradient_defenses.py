"""Defenses that work on a gradient: their settings, zero strength, and the law and scale of noise."""

import math

import pytest
import torch
from scipy import stats

import client_defenses
from client_defenses import Memory
from client_defenses.dp_gaussian import DPGaussian
from client_defenses.dp_laplace import DPLaplace, laplace
from client_defenses.drop_fedsgd import DropFedSGD
from client_defenses.gradient_dropout import (
    GradientDropout,
)
from client_defenses.quantize import Quantize
from client_defenses.tools.clipping import clip, total_norm
from fl_app.core.spec import SpecError
from helpers.tensors import flat

# Settings


@pytest.mark.parametrize(
    ("spec", "setting"),
    [
        ("gradient_dropout(p=0.0)", "p"),
        ("gradient_dropout(p=1.1)", "p"),
        ("gradient_dropout(sigma=-1.0)", "sigma"),
        ("gradient_dropout(sigma='big')", "sigma"),
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


def test_a_number_that_is_not_finite_is_refused():
    with pytest.raises(SpecError, match="sigma: 1e999 is too large"):
        client_defenses.build("gradient_dropout(sigma=1e999)")
    for value in (math.inf, math.nan):
        with pytest.raises(SpecError, match=r"sigma=.* must be a finite number"):
            GradientDropout(sigma=value)


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


def test_an_attacker_expects_the_scale_of_dropout_and_the_clipping_of_noise(grads):
    for name, value in GradientDropout(p=0.5).expected(grads).items():
        assert torch.equal(value, 2 * grads[name])
    for defense in (DPGaussian(clip=0.1), DPLaplace(clip=0.1), DropFedSGD(clip=0.1)):
        assert total_norm(defense.expected(grads)) == pytest.approx(0.1, rel=1e-5)
    assert DPGaussian(clip=None).expected(grads) is grads
    for name, value in Quantize(stochastic=True).expected(grads).items():  # unbiased
        assert torch.equal(value, grads[name])
