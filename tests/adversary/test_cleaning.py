"""What informed attackers take out of a reconstruction."""

import pytest
import torch
from torch.nn import functional as F

from adversary.informed.fedem import common_part, remove_common
from adversary.informed.refiner import cleaned, unblend

SHAPE = (1, 12, 12)


def test_who_knows_what_reconstructions_share_removes_it(rng):
    images = F.interpolate(torch.rand(400, 1, 4, 4, generator=rng), size=12, mode="bilinear")
    delta = torch.randn(SHAPE, generator=rng).sign() / 10
    rho = delta.norm().item()
    for mean, most in ((images.mean(0), 0.01), (torch.full(SHAPE, 0.5), 0.25), (None, 0.5)):
        assert (common_part(images + delta, rho, mean) - delta).norm() < most * rho
        assert common_part(images + delta, rho / 2, mean).norm() <= rho / 2 + 1e-5
        cleaned = remove_common(images + delta, rho, mean)
        assert (cleaned - images).square().mean() < 0.5 * delta.square().mean()
        assert 0 <= cleaned.min() <= cleaned.max() <= 1


def test_who_knows_the_blend_factor_takes_the_noise_out(rng):
    image = torch.rand(5000, generator=rng)
    torch.testing.assert_close(unblend(0.5 * image + 0.25, 0.5), image)
    with pytest.raises(ValueError, match="holds nothing"):
        unblend(image, 1.0)


def test_cleaned_images_keep_their_type(rng):
    for kind in (torch.float16, torch.float32, torch.float64):
        assert cleaned(torch.rand(2, 3, *SHAPE, generator=rng).to(kind), 0.5).dtype == kind
