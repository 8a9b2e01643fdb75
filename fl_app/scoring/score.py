"""The one place where a reconstruction meets the truth: the scores of a target, and what many targets say together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from scipy import stats
from torch import Tensor

from fl_app.scoring.base import Matched, Metric, Tools, Unavailable
from fl_app.scoring.matching import match
from fl_app.scoring.metrics import METRICS
from fl_app.scoring.target import Row


@dataclass(frozen=True)
class Scores:
    """One target's scores: by metric a tensor (n,), one value per example, in the order of the truth."""

    values: dict[str, Tensor]
    order: Tensor
    """int64 (n,): reconstruction order[i] was held against true example i."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Metric name -> why it has no values."""

    def row(self) -> dict[str, float | None]:
        """The target as plain numbers, one per metric; None where it is unavailable."""
        return {name: values.mean().item() for name, values in self.values.items()} | dict.fromkeys(self.unavailable)


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


def score(
    x: Tensor,
    y: Tensor,
    true_x: Tensor,
    true_y: Tensor,
    metrics: Mapping[str, Metric] = METRICS,
    tools: Tools | None = None,
) -> Scores:
    """Score one target (a client's round): x (n, *shape), y int64 (n,); it is first matched to the truth.

    Metrics whose needs are not met are left out. A reconstruction with values that are no numbers or outside [0, 1], or no
    ids of text, is a ValueError: such a target failed, and has no score.
    """
    x, tools = x.detach().to(true_x.device), tools or Tools()
    tokens = tools.text.tokens if tools.text is not None else None
    if tokens is not None:
        if not tokens.holds(x):
            raise ValueError("the reconstruction holds values that are no ids of tokens")
    elif not torch.isfinite(x).all() or x.min() < 0 or x.max() > 1:
        raise ValueError("the reconstruction holds values that are not numbers in [0, 1]")
    if y.shape != true_y.shape:
        raise ValueError(f"{tuple(y.shape)} answered classes cannot be held against {tuple(true_y.shape)} true ones")
    order = match(x, true_x, tokens)
    pairs = Matched(x[order], y.to(order.device)[order], true_x, true_y, tools)
    values: dict[str, Tensor] = {}
    reasons: dict[str, str] = {}
    for name, metric in metrics.items():
        if tools.has(metric.needs):
            try:
                values[name] = metric(pairs)
            except Unavailable as reason:
                reasons[name] = str(reason)
    return Scores(values, order, reasons)


def summarize(rows: Sequence[Row | None], key: str) -> Summary:
    """The mean of a metric over targets, with its 95 % confidence interval by the t-distribution.

    A target is the unit: its images come from one update and are not independent. None is a target that failed; one
    without the metric counts as unavailable.
    """
    found = [row.get(key) for row in rows if row is not None]
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
