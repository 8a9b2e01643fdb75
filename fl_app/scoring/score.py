"""The one place where a guess meets the truth: the scores of a target, and what many targets say together."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from scipy import stats
from torch import Tensor

from fl_app.scoring.images import mse, psnr_of, ssim
from fl_app.scoring.matching import match
from fl_app.scoring.perceptual import Unavailable, lpips_distance

Row = dict[str, float | None]
"""One target: metric name -> its mean over the target's images, or None where the metric is unavailable."""


@dataclass(frozen=True)
class Scores:
    """One target's scores: tensors (n,), one value an image, in the order of the truth; None where unavailable."""

    mse: Tensor
    psnr: Tensor
    ssim: Tensor | None
    lpips_alex: Tensor | None
    lpips_vgg: Tensor | None
    label_accuracy: float
    order: Tensor
    """int64 (n,): guess order[i] was held against true example i."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Metric name -> why it has no value."""

    def row(self) -> Row:
        """The target as plain numbers, one a metric."""
        images = {name: getattr(self, name) for name in ("mse", "psnr", "ssim", "lpips_alex", "lpips_vgg")}
        means = {name: None if values is None else values.mean().item() for name, values in images.items()}
        return {**means, "label_accuracy": self.label_accuracy}


class Summary(NamedTuple):
    """The mean over n targets, its 95 % confidence interval, and how many targets are not in it."""

    mean: float | None
    """None if no target has a value."""
    low: float | None
    """None if fewer than two targets have a value."""
    high: float | None
    n: int
    failed: int
    """Targets without any result, or with one that is not a finite number."""
    unavailable: int
    """Targets that were scored, but where this metric could not be computed."""


def label_accuracy(guess_y: Tensor, true_y: Tensor) -> float:
    """The share of n true classes that are among the guessed, each guess used once: the overlap of two multisets / n."""
    if guess_y.shape != true_y.shape or not true_y.numel():
        raise ValueError(f"{tuple(guess_y.shape)} guessed classes cannot be held against {tuple(true_y.shape)} true ones")
    classes = int(torch.maximum(guess_y.max(), true_y.max())) + 1
    guessed, true = (torch.bincount(y.cpu(), minlength=classes) for y in (guess_y, true_y))
    return torch.minimum(guessed, true).sum().item() / true_y.numel()


def score(guess_x: Tensor, guess_y: Tensor, true_x: Tensor, true_y: Tensor, *, perceptual: bool = True) -> Scores:
    """Score one target (a client's round): x (n, *shape) in [0, 1], y int64 (n,); guesses are first matched to the truth.

    A guess with values that are no numbers or outside [0, 1] is a ValueError: such a target failed, and has no score.
    """
    guess_x = guess_x.detach().to(true_x.device)
    if not torch.isfinite(guess_x).all() or guess_x.min() < 0 or guess_x.max() > 1:
        raise ValueError("the guess holds values that are not numbers in [0, 1]")
    order = match(guess_x, true_x)
    guess = guess_x[order]
    error = mse(guess, true_x)
    reasons: dict[str, str] = {}

    def attempt(name: str, metric: Callable[[], Tensor]) -> Tensor | None:
        try:
            return metric()
        except Unavailable as reason:
            reasons[name] = str(reason)
            return None

    if true_x.ndim == 4 and min(true_x.shape[2:]) >= 3:
        similarity = ssim(guess, true_x)
    else:
        similarity, reasons["ssim"] = None, f"SSIM needs images of at least 3 x 3 pixels, not {tuple(true_x.shape[1:])}"
    if perceptual:
        alex = attempt("lpips_alex", lambda: lpips_distance(guess, true_x, "alex"))
        vgg = attempt("lpips_vgg", lambda: lpips_distance(guess, true_x, "vgg"))
    else:
        alex = vgg = None
        reasons |= dict.fromkeys(("lpips_alex", "lpips_vgg"), "not asked for")
    return Scores(error, psnr_of(error), similarity, alex, vgg, label_accuracy(guess_y, true_y), order, reasons)


def summarize(rows: Sequence[Mapping[str, float | None] | None], key: str) -> Summary:
    """The mean of a metric over targets, with its 95 % confidence interval by the t-distribution.

    A target is the unit: its images come from one update and are not independent. None is a target that failed.
    """
    found = [row[key] for row in rows if row is not None]
    numbers = [value for value in found if value is not None]
    finite = [value for value in numbers if math.isfinite(value)]
    failed, unavailable = len(rows) - len(found) + len(numbers) - len(finite), len(found) - len(numbers)
    n = len(finite)
    if n == 0:
        return Summary(None, None, None, 0, failed, unavailable)
    mean = math.fsum(finite) / n
    if n == 1:
        return Summary(mean, None, None, 1, failed, unavailable)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in finite) / (n - 1))
    half = float(stats.t.ppf(0.975, n - 1)) * deviation / math.sqrt(n)
    return Summary(mean, mean - half, mean + half, n, failed, unavailable)


def success_rate(values: Tensor, threshold: float = 30.0, *, higher_is_better: bool = True, failed: int = 0) -> float:
    """The share of values that reach a threshold (PSNR of 30 dB by default); failed ones count as not reaching it."""
    total = values.numel() + failed
    if not total:
        raise ValueError("there is no success rate of nothing")
    reached = values >= threshold if higher_is_better else values <= threshold
    return reached.sum().item() / total
