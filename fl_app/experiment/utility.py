"""How good the model is: accuracy, loss and macro F1 on held-out data."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fl_app.core.local import Tensors
from fl_app.data.base import Examples


class Utility(NamedTuple):
    """Accuracy and macro F1 in [0, 1], mean cross-entropy."""

    accuracy: float
    loss: float
    macro_f1: float


def confusion(y: Tensor, predicted: Tensor, num_classes: int) -> Tensor:
    """(classes, classes): row = true class, column = predicted class."""
    return torch.bincount(y * num_classes + predicted, minlength=num_classes**2).view(num_classes, num_classes)


def macro_f1(matrix: Tensor) -> float:
    """Mean F1 over the classes that occur in the truth or the predictions."""
    hits, total = matrix.diag().double(), (matrix.sum(0) + matrix.sum(1)).double()
    present = total > 0
    return (2 * hits[present] / total[present]).mean().item() if present.any() else 0.0


@torch.no_grad()
def evaluate(
    model: nn.Module, params: Tensors, examples: Examples, num_classes: int, *, device: str = "cpu", batch: int = 500
) -> Utility:
    """Score a model on examples, in equal batches (BatchNorm here uses the statistics of the batch)."""
    matrix, loss = torch.zeros(num_classes, num_classes, dtype=torch.int64), 0.0
    chunks = max(1, -(-len(examples) // batch))
    for positions in torch.arange(len(examples)).chunk(chunks):
        x, y = examples.at(slice(int(positions[0]), int(positions[-1]) + 1))
        logits = functional_call(model, params, (x.to(device),)).cpu()
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        matrix += confusion(y, logits.argmax(1), num_classes)
    total = max(1, len(examples))
    return Utility(matrix.diag().sum().item() / total, loss / total, macro_f1(matrix))
