"""Classes counted by what the network answers to public examples of each class, as weights that were trained need it."""

import torch
from torch import Tensor
from torch.func import functional_call

from adversary.base import AttackError, Public
from adversary.labels import as_gradient, last_layer, solved
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task

PER_CLASS = 100
"""Public examples of a class that are looked at; RLU takes 5 to 100."""


def can_count(seen: Observation, task: Task) -> bool:
    """Whether the network has a last layer with a bias."""
    try:
        return last_layer(seen.update, task.num_classes)[1] is not None
    except AttackError:
        return False


def confidences(task: Task, params: Tensors, public: Public) -> Tensors:
    """Mean and variance of the answers to public examples of each class, (classes, classes) each: [true class, answered]."""
    answers = []
    for label in range(task.num_classes):
        chosen = public.x[public.y == label][:PER_CLASS]
        chosen = chosen if len(chosen) else public.x[:PER_CLASS]  # a class that nobody has examples of
        with torch.no_grad():
            answers.append(functional_call(task.model, params, (chosen.to(next(iter(params.values())).device),)).softmax(1))
    spread, mean = zip(*(torch.var_mean(one, dim=0, correction=0) for one in answers), strict=True)
    return {"confidence": torch.stack(mean), "spread": torch.stack(spread)}


def counted(seen: Observation, task: Task, known: Tensors) -> Tensor:
    """In the manner of RLU (Chen and Vikalo 2024): the counts that explain the gradient of the last bias, int64 (examples,).

    B gradient_c = sum_j n_j (confidence[j, c] - [j = c]), each equation weighted by the spread that the counts imply.
    """
    _, bias = last_layer(as_gradient(seen), task.num_classes)
    if bias is None:
        raise AttackError("the last layer has no bias, so classes cannot be counted: grant the labels")
    return solved(known["confidence"], bias, seen.num_examples, known["spread"])
