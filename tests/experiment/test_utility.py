"""Accuracy, loss, macro F1 and MCC against scikit-learn; perplexity of language models that know nothing, and all."""

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from torch.nn import functional as F

from fl_app import models
from fl_app.data import Examples
from fl_app.experiment.utility import confusion, evaluate, macro_f1, mcc


@pytest.mark.parametrize("seed", range(5))
def test_macro_f1_is_that_of_sklearn(seed):
    generator = torch.Generator().manual_seed(seed)
    y, predicted = (torch.randint(0, 5 - (i == 1), (40,), generator=generator) for i in range(2))
    assert macro_f1(confusion(y, predicted, 7)) == pytest.approx(f1_score(y, predicted, average="macro", zero_division=0))
    assert mcc(confusion(y, predicted, 7)) == pytest.approx(matthews_corrcoef(y, predicted))
    assert mcc(confusion(y, torch.zeros_like(y), 7)) == 0


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


class Knows(torch.nn.Module):
    """A language model that is sure of the next token, or of none."""

    def __init__(self, sure):
        super().__init__()
        self.sure = torch.nn.Parameter(torch.tensor(sure))

    def forward(self, ids):
        following = torch.nn.functional.pad(ids[:, 1:], (0, 1))
        return self.sure * torch.nn.functional.one_hot(following, 50).float().transpose(1, 2)


@pytest.mark.parametrize(("sure", "perplexity", "accuracy"), [(0.0, 50.0, 0.0), (100.0, 1.0, 1.0)])
def test_perplexity_counts_real_tokens(sure, perplexity, accuracy):
    ids = torch.randint(1, 50, (70, 6), generator=torch.Generator().manual_seed(0))
    ids[::2, 4:] = 0
    model = Knows(sure)
    found = evaluate(model, models.parameters_of(model), Examples(ids, torch.zeros(70, dtype=torch.int64)), 1)
    assert found.perplexity == pytest.approx(perplexity, rel=1e-4)
    assert found.accuracy == pytest.approx(accuracy)
    assert set(found.numbers()) == {"accuracy", "loss", "perplexity"}
