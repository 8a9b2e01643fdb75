"""What the examples of a batch betray about the weights: who makes up the gradient, and what the loss says.

The numbers are few, and lists are quicker with few: torch would take a noticeable part of a small network's round.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fl_app.client.guard.watch import Notes, Passed
from fl_app.client.guard.weights import over_the_others

FEW, SEVERAL = 8, 32
"""The fewest examples for which one that stands out, and for which neurons that one of them reaches, say something.

Of two examples one often has most of the gradient, and a usual neuron fires for a tenth of all.
"""


def example_checks(notes: Notes, earlier: Sequence[float] = ()) -> dict[str, float]:
    """All checks of one batch by name; `earlier` has the losses of the client's earlier rounds."""
    found = {"loss": loss_jump(notes, earlier)}
    layers = notes.layers
    batch = len(layers[-1].slopes) if layers else 0
    if batch > 1 and all(len(one.inputs) == len(one.slopes) == batch for one in layers):
        found["d_snr"], excess = dominance(layers)
        if batch >= FEW:
            found["excess"] = excess
    hidden = [one.delta for one in layers[:-1] if one.delta is not None]
    if batch >= SEVERAL and hidden:
        found["solo"] = max(map(solo_share, hidden))
    return found


def snr(sizes: Sequence[float]) -> float:
    """How far one example dominates the others."""
    return over_the_others(max(sizes), sum(sizes))


def dominance(layers: Sequence[Passed]) -> tuple[float, float]:
    """(D-SNR, the share of it that the loss does not explain), each the largest of all layers (Garov et al. 2024, 4.2).

    An example's gradient in a layer is measured by |input| |delta|: exact where a layer sees one vector, else a bound. With
    batch statistics it is the example's place in the batch, not its loss, that counts. A trained network has batches in which
    one example alone is wrong: its gradient dominates every layer as it dominates the loss's own gradient by the logits. What
    exceeds that comes from the weights.
    """
    deltas = torch.stack([one.slopes for one in layers]).double()
    inputs = torch.stack([one.inputs.float() for one in layers]).double()
    ratios = list(map(snr, (deltas * inputs).tolist()))
    explained = max(1.0, snr(deltas[-1].tolist()))
    largest = max(ratios)
    return largest, largest / explained if math.isfinite(explained) else 1.0


def solo_share(delta: Tensor) -> float:
    """Share of the neurons that any example reaches (delta, (batch, neurons), is not 0) which exactly one reaches.

    No more than such neurons there are for each example: of the few that a layer of dead neurons has left, many are alone.
    """
    active = (delta != 0).cpu().numpy().sum(0)
    alone, reached = int((active == 1).sum()), int((active > 0).sum())
    return alone / max(reached, len(delta))


def loss_jump(notes: Notes, earlier: Sequence[float]) -> float:
    """The loss over the largest of earlier rounds, and over that of a guess, log(classes), if that is more."""
    return notes.loss / max([math.log(max(notes.classes, 2)), *earlier]) if math.isfinite(notes.loss) else math.inf
