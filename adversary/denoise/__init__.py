"""Denoisers of updates, one file each, by the names that they have in specs."""

from collections.abc import Callable

from adversary.denoise.base import Denoiser
from adversary.denoise.diffusion import Diffusion
from adversary.denoise.linear_gaussian import LinearGaussian

DENOISERS: dict[str, Callable[..., Denoiser]] = {
    "diffusion": Diffusion,
    "linear_gaussian": LinearGaussian,
}

__all__ = ["DENOISERS", "Denoiser", "Diffusion", "LinearGaussian"]
