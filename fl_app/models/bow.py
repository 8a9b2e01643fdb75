"""Softmax regression on the words of a text: the baseline below every transformer."""

import torch
from torch import Tensor, nn

from fl_app.models.layers import TextShape
from fl_app.models.text import TextModel


class Bow(TextModel):
    """One weight for each word and class, summed over the words of a text."""

    def __init__(self, shape: TextShape, num_classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(shape[1], num_classes)
        self.bias = nn.Parameter(torch.zeros(num_classes))
        nn.init.zeros_(self.words.weight)

    def logits(self, lifted: Tensor) -> Tensor:
        """(batch, length, classes + 1) -> (batch, classes)."""
        return (lifted[..., :-1] * lifted[..., -1:]).sum(-2) + self.bias


def bow(input_shape: TextShape, num_classes: int) -> nn.Module:
    """Bag of words: softmax regression on how often each word occurs, without their order."""
    return Bow(input_shape, num_classes)
