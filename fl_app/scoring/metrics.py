"""The metrics: one entry each, from which scores.jsonl, tables, reports, exports and the gate follow."""

from collections.abc import Iterable

from torch import Tensor

from fl_app.core import spec
from fl_app.core.spec import SpecError
from fl_app.core.table import Rows
from fl_app.scoring import images
from fl_app.scoring.base import Judge, Matched, Metric, Threshold, Unavailable
from fl_app.scoring.classifier import kl_divergence, sees_class
from fl_app.scoring.labels import labels_found
from fl_app.scoring.noise_ratio import noise_ratio
from fl_app.scoring.perceptual import Net, lpips_distance
from fl_app.scoring.target import KEYS
from fl_app.scoring.text_metrics import TEXT

REFINER = "the Refiner paper"
RECOVERED = 30.0
"""dB from which on an image counts as recovered: closed forms find some examples exactly and others not at all."""
CALIBRATED = "below what blind answers reach on MNIST and CIFAR-10, docs/report.md"
"""The Refiner paper's 0.05 is for larger images, by a network that it does not name: scripts/calibrate_lpips.py."""

MOST_OF_A_ROW = "ours: nine cells in ten; blind answers stay below, docs/results/tabular.md"


def _ssim(pairs: Matched) -> Tensor:
    shape = tuple(pairs.true_x.shape[1:])
    if len(shape) != 3 or min(shape[1:]) < 3:
        raise Unavailable(f"SSIM needs images of at least 3 x 3 pixels, not {shape}")
    return images.ssim(pairs.x, pairs.true_x)


def _lpips(pairs: Matched, net: Net) -> Tensor:
    return lpips_distance(pairs.x, pairs.true_x, net)


def _judge(pairs: Matched) -> Judge:
    if pairs.tools.judge is None:
        raise Unavailable("there is no judge: name an undefended run")
    return pairs.tools.judge


def _mse(pairs: Matched) -> Tensor:
    if pairs.tools.text is not None:
        raise Unavailable("numbers of tokens have no distance")
    return images.mse(pairs.x, pairs.true_x)


def _rows(pairs: Matched) -> Rows:
    if pairs.tools.rows is None:
        raise Unavailable("these examples are no rows of a table")
    return pairs.tools.rows


METRICS: dict[str, Metric] = {
    "psnr": Metric(
        title="PSNR",
        unit="dB",
        digits=1,
        higher_leaks=True,
        of="images",
        threshold=Threshold(15.0, REFINER),
        values=lambda pairs: images.psnr(pairs.x, pairs.true_x),
    ),
    "ssim": Metric(title="SSIM", digits=2, higher_leaks=True, of="images", threshold=Threshold(0.5, REFINER), values=_ssim),
    "mse": Metric(title="MSE", digits=4, higher_leaks=False, shown="files", values=_mse),
    "above_30db": Metric(
        title="share above 30 dB",
        digits=2,
        higher_leaks=True,
        of="images",
        shown="files",
        values=lambda pairs: (images.psnr(pairs.x, pairs.true_x) > RECOVERED).double(),
    ),
    "lpips_alex": Metric(
        title="LPIPS",
        higher_leaks=False,
        of="images",
        threshold=Threshold(0.1, CALIBRATED, "lpips"),
        needs="lpips",
        values=lambda pairs: _lpips(pairs, "alex"),
    ),
    "lpips_vgg": Metric(
        title="LPIPS (VGG)",
        higher_leaks=False,
        of="images",
        threshold=Threshold(0.15, CALIBRATED, "lpips"),
        shown="files",
        needs="lpips",
        values=lambda pairs: _lpips(pairs, "vgg"),
    ),
    "cells": Metric(
        title="cells right",
        digits=2,
        higher_leaks=True,
        of="rows",
        threshold=Threshold(0.9, MOST_OF_A_ROW),
        needs="rows",
        values=lambda pairs: _rows(pairs).right(pairs.x, pairs.true_x).double().mean(-1),
    ),
    **TEXT,
    "label_accuracy": Metric(
        title="label accuracy", higher_leaks=True, shown="files", values=lambda pairs: labels_found(pairs.y, pairs.true_y)
    ),
    "kl": Metric(
        title="KL of the judge's classes",
        unit="nats",
        higher_leaks=False,
        shown="files",
        needs="judge",
        values=lambda pairs: kl_divergence(*_judge(pairs), pairs.true_x, pairs.x),
    ),
    "judged_accuracy": Metric(
        title="judged accuracy",
        higher_leaks=True,
        shown="files",
        needs="judge",
        values=lambda pairs: sees_class(*_judge(pairs), pairs.x, pairs.true_y),
    ),
    "noise_ratio": Metric(
        title="noise ratio",
        digits=2,
        higher_leaks=False,
        of="images",
        shown="curves",
        needs="evaluator",
        values=lambda pairs: noise_ratio(pairs.x, pairs.tools.evaluator),
    ),
}


def with_plugged(names: Iterable[str]) -> dict[str, Metric]:
    """All metrics, and beside them those that are named: `package.module:name`, or the name of an installed one.

    A plugged-in metric is a Metric, or a function that makes one and takes the settings that are written behind its name.
    Its key in files is what stands behind the colon.
    """
    found = dict(METRICS)
    for text in dict.fromkeys(names):
        part = spec.single("metric", text)
        if part.name in METRICS:
            continue
        key = part.name.rpartition(":")[2]
        if key in found or key in KEYS:
            raise SpecError(f"{text}: scores.jsonl has a '{key}' already: give this metric another name")
        plugged, _ = spec.lookup("metric", part, METRICS)  # a Metric takes no settings, so they are refused here
        found[key] = plugged if isinstance(plugged, Metric) else spec.build_part("metric", part, {}, base=Metric)
    return found
