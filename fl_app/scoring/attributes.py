"""Whether an attack told attributes, properties and labels: the truth about its candidates, and balanced accuracies.

The mean of a target's value over all targets is the balanced accuracy of all: what is right counts for more where it is rare.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from fl_app.core.observation import Candidates, Key
from fl_app.core.space import attribute_values
from fl_app.core.table import Rows
from fl_app.experiment.assets import Assets
from fl_app.experiment.truth import clients_behind, true_attributes
from fl_app.scoring import roc
from fl_app.scoring.base import Measure
from fl_app.scoring.membership import Believed
from fl_app.scoring.target import Row

Beliefs = Mapping[Key, Believed]

ATTRIBUTE = {
    "attribute_balanced": Measure(title="attribute, balanced", digits=2, higher_leaks=True, question="attribute"),
    "attribute_accuracy": Measure(title="attribute accuracy", digits=2, higher_leaks=True, shown="files", question="attribute"),
}
PROPERTY = {
    "property_balanced": Measure(title="property, balanced", digits=2, higher_leaks=True, question="property"),
    "property_auc": Measure(title="property AUC", digits=2, higher_leaks=True, shown="files", question="property"),
}
LABELS = {"label_balanced": Measure(title="main class, balanced", digits=2, higher_leaks=True, question="labels")}


def attribute(assets: Assets, key: Key, asked: Candidates, column: str) -> Tensor:
    """Which candidates, each row with each value in turn, are the rows themselves: int8 (rows * values,).

    Of images, for which each value was asked about once: the value that most of the target have, int8 (values,).
    """
    own, values = true_attributes(assets, key, column).cpu(), len(attribute_values(assets.space, column))
    if not isinstance(assets.space, Rows):
        own = own.bincount(minlength=values).argmax()[None]
    return F.one_hot(own, values).flatten().to(torch.int8)


def having(assets: Assets, key: Key, asked: Candidates, about: str) -> Tensor:
    """Whether some example of the target has the value that is asked about, column=value: int8 (1,)."""
    return (true_attributes(assets, key, about.partition("=")[0]).cpu() == asked.y).any()[None].to(torch.int8)


def most_frequent(assets: Assets, key: Key, asked: Candidates, about: str) -> Tensor:
    """The class of which the target's clients own most: int8 (classes,)."""
    owned = torch.cat([assets.shares[client] for client in clients_behind(assets, key[1], key[0])])
    counts = assets.splits.train.y[owned].bincount(minlength=len(asked.y))
    return (torch.arange(len(counts)) == counts.argmax()).to(torch.int8)


def _choices(believed: Beliefs) -> dict[Key, tuple[Tensor, Tensor]]:
    """Of each target the places of the chosen and of the true value, (rows,) each: one true candidate per row."""
    found = {}
    for key, one in believed.items():
        rows = max(1, int(one.truth.sum()))
        found[key] = one.scores.view(rows, -1).argmax(1), one.truth.view(rows, -1).argmax(1)
    return found


def _weights(actual: Tensor) -> Tensor:
    """What a right answer counts by its true value, such that the mean over all is balanced: (values,)."""
    counts = actual.bincount()
    return len(actual) / (int((counts > 0).sum()) * counts.clamp_min(1).double())


def attribute_rows(believed: Beliefs) -> dict[Key, Row]:
    """Balanced and plain accuracy of the value with the highest score."""
    choices = _choices(believed)
    weights = _weights(torch.cat([actual for _, actual in choices.values()]))
    return {
        key: {
            "attribute_balanced": ((chosen == actual) * weights[actual]).mean().item(),
            "attribute_accuracy": (chosen == actual).double().mean().item(),
        }
        for key, (chosen, actual) in choices.items()
    }


def attribute_floor(believed: Beliefs) -> Row:
    """Always the most frequent value."""
    counts = torch.cat([actual for _, actual in _choices(believed).values()]).bincount()
    share = (counts.max() / counts.sum()).item()
    return {"attribute_balanced": 1 / int((counts > 0).sum()), "attribute_accuracy": share}


def label_rows(believed: Beliefs) -> dict[Key, Row]:
    """Balanced accuracy of the class with the highest score; a client's rounds count as one another's equals."""
    return {key: {"label_balanced": row["attribute_balanced"]} for key, row in attribute_rows(believed).items()}


def label_floor(believed: Beliefs) -> Row:
    """Always the class that most clients have most of."""
    return {"label_balanced": attribute_floor(believed)["attribute_balanced"]}


def property_rows(believed: Beliefs) -> dict[Key, Row]:
    """Balanced accuracy of the sign of the score, and of targets with the property their rank among those without."""
    actual = {key: int(one.truth[0]) for key, one in believed.items()}
    weights = _weights(torch.tensor(list(actual.values())))
    without = torch.cat([one.scores for key, one in believed.items() if not actual[key]] or [torch.empty(0)])
    rows: dict[Key, Row] = {}
    for key, one in believed.items():
        right = (one.scores[0] > 0) == bool(actual[key])
        ranked = bool(actual[key]) and len(without) > 0
        rows[key] = {
            "property_balanced": (right * weights[actual[key]]).item(),
            "property_auc": roc.auc(one.scores, without) if ranked else None,
        }
    return rows


def property_floor(believed: Beliefs) -> Row:
    """Always the same answer."""
    return {"property_balanced": 1 / len({int(one.truth[0]) for one in believed.values()}), "property_auc": 0.5}
