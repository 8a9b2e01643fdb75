"""Pictures of single targets for a report: what a client used, beside what attackers made of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fl_app.core.observation import Key
from fl_app.core.table import Rows
from fl_app.core.text import Tokens
from fl_app.experiment.assets import Assets, assets_of
from fl_app.experiment.config import Experiment
from fl_app.experiment.truth import clients_behind, true_aggregate
from fl_app.scoring.matching import match
from fl_app.store.reconstructions import Reconstruction, guess_path, load_answer


class Pictured(NamedTuple):
    """One target: its images, rows or ids (n, *shape), and what attacks answered, matched; None where there is nothing."""

    truth: Tensor
    rebuilt: list[Tensor | None]
    examples: int
    """How many examples the target has; the first n of them are shown."""


def truth_of(experiment: Experiment) -> Assets:
    """What is needed for the truth behind a run: its data and shares, without the defense and what that would load."""
    return assets_of(experiment.changed(defense="none", delta=0.0, attack="none", run_dir="", device="cpu"))


def picture(assets: Assets, key: Key, folders: Sequence[Path], at_most: int) -> Pictured:
    """The truth of a target and the reconstruction in each attack's folder; ValueError if these cannot be shown."""
    x, _ = true_aggregate(assets, clients_behind(assets, key[1], key[0]), key[0])
    tokens = assets.space if isinstance(assets.space, Tokens) else None
    if not isinstance(assets.space, Rows | Tokens) and (x.ndim != 4 or x.shape[1] not in (1, 3)):
        raise ValueError(f"examples of shape {tuple(x.shape[1:])} cannot be shown as images")
    rebuilt: list[Tensor | None] = []
    for folder in folders:
        path = guess_path(folder, key)
        answer = load_answer(path) if path.exists() else None
        found = answer.x if isinstance(answer, Reconstruction) else None
        fits = found is not None and found.shape == x.shape and bool(found.isfinite().all())
        fits = fits and (tokens is None or (found is not None and tokens.holds(found)))
        rebuilt.append(found[match(found, x, tokens)][:at_most] if found is not None and fits else None)
    return Pictured(x[:at_most], rebuilt, len(x))
