"""What an attacker reached, held against the thresholds: the one place where it is decided what a leak is."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fl_app.analysis.attackers import Attacker
from fl_app.analysis.limits import Limits
from fl_app.scoring.base import Measure
from fl_app.scoring.score import Summary


class Finding(NamedTuple):
    """One metric of one attacker beside its threshold."""

    attacker: Attacker
    metric: str
    measure: Measure
    value: float
    summary: Summary
    """Over all targets; its interval belongs to the mean."""
    target: str = ""
    """The target that the value is of; empty for the mean over all."""
    answered: float | None = None
    """What the attack answered itself, where the value is that of its worst member by truth."""
    control: float | None = None
    """What the same attack reached on updates that say nothing, where all that it draws looks like an example."""
    told: bool = True
    """Whether the value is owed to the updates: more than the control."""

    @property
    def threshold(self) -> float:
        """What the value is held against."""
        assert self.measure.threshold is not None
        return self.measure.threshold.value

    @property
    def beaten(self) -> bool:
        """Whether the value lies beyond the threshold, and is owed to the updates."""
        return self.told and self.measure.leaks(self.value)

    @property
    def excess(self) -> float:
        """How far beyond the threshold, as a share of it; negative on the safe side."""
        beyond = self.measure.leak(self.value) - self.measure.leak(self.threshold)
        return beyond / (abs(self.threshold) or 1.0)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of a mean."""
        low, high = self.summary.low, self.summary.high
        return None if self.target or low is None or high is None else (low, high)

    @property
    def sign(self) -> str:
        """How a value beyond the threshold compares with it."""
        return ">" if self.measure.higher_leaks else "<"

    def words(self) -> str:
        """Attacker, ledger, metric, value with interval, threshold, number of targets."""
        unit, sign = f" {self.measure.unit}".rstrip(), self.sign if self.beaten else "against"
        what = f"worst target ({self.target})" if self.target else "mean"
        interval = " [{:.3g}, {:.3g}]".format(*self.interval) if self.interval else ""
        control = "" if self.control is None else f" (its control {self.control:.3g}{unit}{', no less' * (not self.told)})"
        answered = f" (answered {self.answered:.3g}{unit})" if self.answered is not None else ""
        n, failed = self.summary.n, self.summary.failed
        return (
            f"{who(self.attacker)} (granted: {self.attacker.ledger}): {self.metric} {what} {self.value:.3g}{unit}{interval}"
            f"{answered}{control} {sign} {self.threshold:g}{unit}, {n} targets{f', {failed} failed' * (failed > 0)}"
        )

    def as_json(self) -> dict[str, Any]:
        """The same for machines."""
        low, high = self.interval or (None, None)
        about = {key: getattr(self.attacker, key) for key in ("who", "asked", "attack", "ledger")}
        found = {"metric": self.metric, "value": self.value, "low": low, "high": high, "target": self.target}
        found |= {"by_truth": self.attacker.by_truth, "answered": self.answered, "control": self.control}
        judged = {"n": self.summary.n, "failed": self.summary.failed, "threshold": self.threshold, "beaten": self.beaten}
        return {**about, **found, **judged, "folder": str(self.attacker.parts[0].folder)}


def who(attacker: Attacker) -> str:
    """An attacker with its whole attack."""
    return f"{attacker.who}{' of' if attacker.by_truth else ''} {attacker.attack}".removeprefix("attack ")


def findings_of(attacker: Attacker, limits: Limits, *, single: bool = False) -> list[Finding]:
    """Every metric with a threshold that an attacker has: its mean over targets, or with `single` its best single target."""
    found = []
    for metric, measure in [pair for metrics in limits.values() for pair in metrics.items()]:
        summary, told = attacker.summary(metric), attacker.told_by_updates(metric, measure)
        if summary.mean is None:
            continue
        if single:
            values = [(one.values.get(metric), one.where) for one in attacker.targets if one.done]
            value, target = max(_finite(values), key=lambda one: measure.leak(one[0]))
            found.append(Finding(attacker, metric, measure, value, summary, target, told=told))
        else:
            control = attacker.control(metric).mean
            found.append(Finding(attacker, metric, measure, summary.mean, summary, control=control, told=told))
    return found


def _finite(values: Sequence[tuple[float | None, str]]) -> list[tuple[float, str]]:
    return [(value, target) for value, target in values if value is not None and math.isfinite(value)]
