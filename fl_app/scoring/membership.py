"""Whether an attack told members from others: the truth about its candidates, and what its scores came to."""

import hashlib
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fl_app.core.observation import Candidates, Key
from fl_app.experiment.assets import Assets, assets_of
from fl_app.experiment.config import Experiment
from fl_app.experiment.truth import clients_behind, true_aggregate
from fl_app.scoring import roc
from fl_app.scoring.base import Measure
from fl_app.scoring.target import Row

CHUNK = 4096
MEMBER, OTHER, LEFT_OUT = 1, 0, -1
"""A candidate that is in the target's examples, in no client's data, or in somebody's data but not in this target's."""


class Believed(NamedTuple):
    """What an attack believes of the candidates of one target, (n,), and what they are, int8 (n,)."""

    scores: Tensor
    truth: Tensor

    @property
    def members(self) -> Tensor:
        """The scores of members."""
        return self.scores[self.truth == MEMBER]

    @property
    def others(self) -> Tensor:
        """The scores of those who are in nobody's data."""
        return self.scores[self.truth == OTHER]


def prints(x: Tensor) -> list[bytes]:
    """A digest of each example, (n, *shape)."""
    rows = x.detach().cpu().contiguous().flatten(1).numpy()
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows]


@lru_cache(maxsize=4)
def _owned(experiment: Experiment) -> frozenset[bytes]:
    """The digests of all examples that clients own."""
    assets = assets_of(experiment)
    parts = torch.cat(assets.shares).unique().split(CHUNK)
    return frozenset(one for part in parts for one in prints(assets.splits.train.at(part)[0]))


def membership(assets: Assets, key: Key, candidates: Candidates, about: str = "") -> Tensor:
    """The truth about candidates: MEMBER, OTHER or LEFT_OUT, int8 (n,), by whether the very example is there."""
    used = true_aggregate(assets, clients_behind(assets, key[1], key[0]), key[0])[0]
    return members_among(candidates, used, _owned(assets.experiment))


def members_among(candidates: Candidates, used: Tensor, owned: Collection[bytes]) -> Tensor:
    """The same by what a target used, (n, *shape), and the digests of what anybody has."""
    own = set(prints(used))
    known = [MEMBER if one in own else LEFT_OUT if one in owned else OTHER for one in prints(candidates.x)]
    return torch.tensor(known, dtype=torch.int8)


def _rate(rate: float) -> str:
    return f"tpr_at_{rate:g}"


MEASURES: dict[str, Measure] = {
    "auc": Measure(title="membership AUC", higher_leaks=True, shown="curves", question="membership"),
    "advantage": Measure(title="membership advantage", higher_leaks=True, shown="files", question="membership"),
    **{
        _rate(rate): Measure(
            title=f"members found at {rate:.1%} false", higher_leaks=True, shown="files", question="membership"
        )
        for rate in roc.RATES
    },
}


def rows_of(believed: Mapping[Key, Believed]) -> dict[Key, Row]:
    """The measures by target, such that their mean over targets is that of all candidates together.

    A target's AUC is the mean rank of its members among the others of all targets; its true positives are those above the
    threshold that all targets share; its advantage is that at the threshold which is best on the other half of the targets.
    """
    keys = [key for key, one in believed.items() if len(one.members)]
    others = torch.cat([one.others for one in believed.values()]) if believed else torch.empty(0)
    if not keys or not len(others):
        return {key: dict.fromkeys(MEASURES) for key in believed}
    halves = [[believed[key] for key in keys[part::2]] for part in (0, 1)]
    levels = [_best(half) for half in halves]
    rows: dict[Key, Row] = {key: dict.fromkeys(MEASURES) for key in believed}
    for place, key in enumerate(keys):
        members, level = believed[key].members, levels[1 - place % 2]
        row: dict[str, float | None] = {"auc": roc.auc(members, others), "advantage": None}
        if level is not None:
            row["advantage"] = float((members >= level).double().mean() - (others >= level).double().mean())
        for rate in roc.RATES:
            limit = roc.threshold_at(others, rate)
            row[_rate(rate)] = None if limit is None else float((members > limit).double().mean())
        rows[key] = row
    return rows


def _best(half: list[Believed]) -> float | None:
    """The best threshold on some targets; None if they are none."""
    others = torch.cat([one.others for one in half]) if half else torch.empty(0)
    return roc.best_threshold(torch.cat([one.members for one in half]), others) if len(others) else None


def floor() -> Row:
    """What somebody reaches who has seen nothing: with classes as frequent among members as among others, chance."""
    return {"auc": 0.5, "advantage": 0.0, **{_rate(rate): rate for rate in roc.RATES}}
