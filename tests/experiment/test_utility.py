"""Accuracy, loss and macro F1 against scikit-learn."""

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch.nn import functional as F

from fl_app import models
from fl_app.data import Examples
from fl_app.experiment.utility import confusion, evaluate, macro_f1


@pytest.mark.parametrize("seed", range(5))
def test_macro_f1_is_that_of_sklearn(seed):
    generator = torch.Generator().manual_seed(seed)
    y, predicted = (torch.randint(0, 5 - (i == 1), (40,), generator=generator) for i in range(2))
    assert macro_f1(confusion(y, predicted, 7)) == pytest.approx(f1_score(y, predicted, average="macro", zero_division=0))


@pytest.mark.parametrize("batch", [7, 50, 1000])
def test_batched_evaluation_equals_one_pass(batch):
    generator = torch.Generator().manual_seed(0)
    examples = Examples(
        torch.randint(0, 256, (103, 1, 28, 28), generator=generator).byte(), torch.randint(0, 10, (103,), generator=generator)
    )
    model = models.build("lenet5", (1, 28, 28), 10)
    scores = evaluate(model, models.parameters_of(model), examples, 10, batch=batch)
    x, y = examples.at(slice(None))
    with torch.no_grad():
        logits = model(x)
    assert scores.accuracy == pytest.approx(accuracy_score(y, logits.argmax(1)))
    assert scores.loss == pytest.approx(F.cross_entropy(logits, y).item(), rel=1e-5)
    assert scores.macro_f1 == pytest.approx(f1_score(y, logits.argmax(1), average="macro", zero_division=0))
