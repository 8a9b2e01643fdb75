"""How good the model is on held-out data: accuracy, loss, macro F1 and MCC; of a language model, perplexity."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fl_app.core.local import NOTHING, Tensors, next_tokens
from fl_app.data.base import Examples

FEW = 32
"""Texts at once: a language model answers each token with its whole vocabulary."""
MOST = 700
"""The largest loss whose exponential is a number."""


class Utility(NamedTuple):
    """Accuracy and macro F1 in [0, 1], mean cross-entropy, MCC in [-1, 1]; of a language model all of next tokens."""

    accuracy: float
    loss: float
    macro_f1: float | None = None
    mcc: float | None = None
    perplexity: float | None = None
    """By token of its vocabulary, and so comparable within one alone."""

    def numbers(self) -> dict[str, float]:
        """What there is, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def confusion(y: Tensor, predicted: Tensor, num_classes: int) -> Tensor:
    """(classes, classes): row = true class, column = predicted class."""
    return torch.bincount(y * num_classes + predicted, minlength=num_classes**2).view(num_classes, num_classes)


def macro_f1(matrix: Tensor) -> float:
    """Mean F1 over the classes that occur in the truth or the predictions."""
    hits, total = matrix.diag().double(), (matrix.sum(0) + matrix.sum(1)).double()
    present = total > 0
    return (2 * hits[present] / total[present]).mean().item() if present.any() else 0.0


def mcc(matrix: Tensor) -> float:
    """Matthews' correlation coefficient of several classes (Gorodkin 2004); 0 where only one class occurs or is predicted."""
    true, predicted, total = matrix.sum(1).double(), matrix.sum(0).double(), matrix.sum().double()
    spread = (total**2 - predicted.square().sum()) * (total**2 - true.square().sum())
    return ((matrix.diag().sum() * total - true @ predicted) / spread.sqrt()).item() if spread > 0 else 0.0


@torch.no_grad()
def evaluate(
    model: nn.Module, params: Tensors, examples: Examples, num_classes: int, *, device: str = "cpu", batch: int = 500
) -> Utility:
    """Score a model on examples, in equal batches (BatchNorm here uses the statistics of the batch)."""
    if not examples.x.is_floating_point() and examples.x.ndim == 2 and num_classes == 1:
        return _language(model, params, examples, device)
    matrix, loss = torch.zeros(num_classes, num_classes, dtype=torch.int64), 0.0
    chunks = max(1, -(-len(examples) // batch))
    for positions in torch.arange(len(examples)).chunk(chunks):
        x, y = examples.at(slice(int(positions[0]), int(positions[-1]) + 1))
        logits = functional_call(model, params, (x.to(device),)).cpu()
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        matrix += confusion(y, logits.argmax(1), num_classes)
    total = max(1, len(examples))
    return Utility(matrix.diag().sum().item() / total, loss / total, macro_f1(matrix), mcc(matrix))


def _language(model: nn.Module, params: Tensors, examples: Examples, device: str) -> Utility:
    """How well a language model knows the next tokens; each token counts the same."""
    loss, right, total = 0.0, 0, 0
    for ids in examples.x.split(FEW):
        wanted = next_tokens(ids)
        logits = functional_call(model, params, (ids.to(device),)).cpu()
        loss += F.cross_entropy(logits, wanted, reduction="sum").item()
        right += int((logits.argmax(1) == wanted).sum())
        total += int((wanted != NOTHING).sum())
    mean = loss / max(1, total)
    return Utility(right / max(1, total), mean, perplexity=math.exp(mean) if mean < MOST else math.inf)
