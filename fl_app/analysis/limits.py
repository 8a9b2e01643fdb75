"""Thresholds by name: which metrics are held against them, and from where on an attack counts as a leak."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from fl_app.core import spec
from fl_app.scoring.base import Measure, Threshold
from fl_app.scoring.metrics import METRICS

Limits = dict[str, dict[str, Measure]]
"""Name of a threshold -> metrics that are held against it (LPIPS by two networks shares one), each with the threshold."""


def of_examples(limits: Limits, scored: Collection[str]) -> Limits:
    """The thresholds that say something of the examples that were scored, all if none was: rows of a table have no PSNR."""
    kinds = {METRICS[name].of for name in scored if name in METRICS} - {"any"}
    wanted = {
        name: {key: measure for key, measure in metrics.items() if not kinds or measure.of in {"any", *kinds}}
        for name, metrics in limits.items()
    }
    return {name: metrics for name, metrics in wanted.items() if metrics}


def limits_of(measures: Mapping[str, Measure], changed: Mapping[str, float | None] | None = None) -> Limits:
    """The thresholds of measures, some changed; None takes one out, and a metric without one can be given one."""
    changed, found, known = changed or {}, Limits(), set[str]()
    for name, value in changed.items():
        if value is not None and not math.isfinite(value):  # nothing would ever be above nan
            raise ValueError(f"the threshold of {name} must be a finite number, not {value}")
    for metric, measure in measures.items():
        usual = measure.threshold
        name = (usual.shared if usual else "") or metric
        known.add(name)
        value = changed.get(name, usual.value if usual else None)
        if value is not None:
            limit = usual._replace(value=value) if usual else Threshold(value, "asked for")
            found.setdefault(name, {})[metric] = replace(measure, threshold=limit)
    for name in changed.keys() - known:
        raise ValueError(f"there is no metric '{name}' to hold against a threshold; {spec.suggest(name, known)}")
    if not found:
        raise ValueError("every threshold is off: there is nothing to judge")
    return found


def in_words(limits: Limits, *, sources: bool = False) -> str:
    """The thresholds for people, each under the name of its first metric; with `sources` of all, and where they come from."""
    shown: dict[str, list[str]] = {}
    for metrics in limits.values():
        for measure in list(metrics.values())[: None if sources else 1]:
            assert measure.threshold is not None
            words = f"{measure.title} {measure.threshold.value:g} {measure.unit}".rstrip()
            shown.setdefault(measure.threshold.source if sources else "", []).append(words)
    return "; ".join(", ".join(words) + (f" ({source})" if source else "") for source, words in shown.items())
