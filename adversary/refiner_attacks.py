"""What an attacker who knows Refiner can use (its section 4.4 and Appendix M, and its noise-blended start): pure functions."""

from collections.abc import Callable

import torch
from torch import Tensor

from adversary.objectives import squared_l2
from fl_app.core.local import Tensors

TINY = 1e-30


def shell(dummy: Tensors, observed: Tensors, eps: float) -> Tensor:
    """(|dummy - observed| - eps)²: "solve |g* - g| = const", where the projection was active (Appendices J and M)."""
    return ((squared_l2(dummy, observed) + TINY).sqrt() - eps).square()


def ball(dummy: Tensors, observed: Tensors, eps: float) -> Tensor:
    """max(0, |dummy - observed| - eps)²: every gradient that the projection allows is as good, so the priors decide."""
    return torch.relu((squared_l2(dummy, observed) + TINY).sqrt() - eps).square()


def noise_share(x: Tensor, evaluator: Callable[[Tensor], Tensor]) -> Tensor:
    """A prior: D of guesses x (targets, seeds, examples, *shape), their mean (targets, seeds); true images have D near 0."""
    return evaluator(x.flatten(0, 2)).view(x.shape[:3]).mean(-1)


def unblend(x: Tensor, alpha: float) -> Tensor:
    """The images behind robust data that did not move far from (1 - alpha) x + alpha U(0, 1): unbiased, with the noise left.

    What gradient matching finds under Refiner is the robust data; this, then a denoiser, is the step that comes after it.
    """
    if not 0 <= alpha < 1:
        raise ValueError(f"with alpha={alpha} the start holds nothing of the image; it must be in [0, 1)")
    return ((x - alpha / 2) / (1 - alpha)).clamp(0, 1)


def cleaned(x: Tensor, alpha: float) -> Tensor:
    """Images (..., channels, height, width) without the noise that was blended in: as `unblend`, then total variation.

    The weight of the smoothing is the standard deviation of what noise is left, alpha / (1 - alpha) / sqrt(12).
    """
    from skimage.restoration import denoise_tv_chambolle  # brings scipy.stats: a second, for this one function

    # Not yet clamped: cutting off the noise below 0 would leave a mean that is too high.
    images = ((x - alpha / 2) / (1 - alpha)).flatten(0, -4)
    weight = alpha / (1 - alpha) / 12**0.5
    smooth = [denoise_tv_chambolle(one.cpu().numpy(), weight=weight, channel_axis=0) for one in images]  # type: ignore[no-untyped-call]
    return torch.stack([torch.from_numpy(one) for one in smooth]).to(x).view_as(x).clamp(0, 1)
