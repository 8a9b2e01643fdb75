"""Which classes are in an update: read off the gradient of the last layer, before any example is searched for."""

from typing import Literal

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor
from torch.func import functional_call

from adversary.base import AttackError
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task

REFINED = 5
"""How often counts are solved for again with the spread that they imply (Chen and Vikalo 2024)."""
TOTAL = 1e3
"""The weight of the equation that all counts make the batch, against those of the classes (ours)."""
LabelRule = Literal["sign", "min_column", "count", "count_rows", "ilrg", "rows", "given", "joint"]


def last_weight(update: Tensors, num_classes: int) -> str:
    """The name of the last layer's weight, (classes, features)."""
    names = [name for name, value in update.items() if value.ndim == 2 and len(value) == num_classes]
    if not names:
        raise AttackError("the model has no last layer with one row per class, so labels cannot be inferred: grant them")
    return names[-1]


def last_layer(update: Tensors, num_classes: int) -> tuple[Tensor, Tensor | None]:
    """(weight gradient (classes, features), bias gradient (classes,) or None) of the last layer."""
    name = last_weight(update, num_classes)
    return update[name], update.get(name.removesuffix("weight") + "bias")


def as_gradient(seen: Observation) -> Tensors:
    """The observed update on the scale of one mean gradient."""
    if seen.rule.kind == "gradient":
        return seen.update
    scale, decay = seen.rule.lr * seen.rule.gradients, seen.rule.weight_decay
    if not decay:
        return {name: -value / scale for name, value in seen.update.items()}
    return {name: -value / scale - decay * seen.params[name] for name, value in seen.update.items()}


def by_sign(gradient: Tensors, task: Task) -> Tensor:
    """The rule of iDLG (Zhao et al. 2020): of one example, only the true class has a negative gradient. -> (1,)."""
    weight, bias = last_layer(gradient, task.num_classes)
    return (weight.sum(1) if bias is None else bias).argmin()[None]


def by_min_column(gradient: Tensors, task: Task, examples: int) -> Tensor:
    """GradInversion (Yin et al. 2021, Eq. 8): the classes whose rows have the smallest entries; assumes no class twice."""
    weight, _ = last_layer(gradient, task.num_classes)
    if examples > task.num_classes:
        raise AttackError(f"min_column finds each class once: {examples} examples of {task.num_classes} classes need 'count'")
    return weight.min(1).values.argsort()[:examples].sort().values


def by_count(seen: Observation, gradient: Tensors, task: Task, like: Tensor) -> Tensor:
    """Count the examples of each class (in the manner of Wainakh et al. 2022): n_c = B (mean p_c - bias gradient_c).

    The mean predicted probability p_c is not known; it is that of `like`, examples (n, *shape): noise fits early rounds best.
    """
    if seen.num_examples == 1:  # nothing to count, and this rule is blind to the scale of a clipped update
        return by_sign(gradient, task)
    _, bias = last_layer(gradient, task.num_classes)
    if bias is None:
        raise AttackError("the last layer has no bias, so classes cannot be counted: use 'min_column' or grant the labels")
    return _counted(seen, task, bias, like)


def by_count_rows(seen: Observation, gradient: Tensors, task: Task, like: Tensor) -> Tensor:
    """Ours, for updates that a defense spoiled but did not scale: counts as `count`, from whole rows instead of the bias.

    A row of the last layer's gradient is the bias's entry times the features that enter the layer, here those of `like`;
    least squares over the row and the bias outlives masks and decoys, which hit single entries.
    """
    if seen.num_examples == 1:
        return by_rows(seen, gradient, task, like)
    weight, bias = last_layer(gradient, task.num_classes)
    features = _features(task, seen.params, like, last_weight(gradient, task.num_classes)).to(weight)
    factors = weight @ features if bias is None else weight @ features + bias
    return _counted(seen, task, factors / (features @ features + (bias is not None)), like)


def by_ilrg(seen: Observation, gradient: Tensors, task: Task, like: Tensor) -> Tensor:
    """ILRG (Ma et al. 2023): counts by the probabilities p_j that the network gives to the mean features of each class.

    A row of the last layer's gradient over its bias's entry is about the mean of the features of its class, where that entry
    is negative; elsewhere p_j is that of `like`. B gradient_c = sum_j n_j (p_j[c] - [j = c]) is solved for n >= 0 (ours).
    """
    if seen.num_examples == 1:
        return by_sign(gradient, task)
    weight, bias = last_layer(gradient, task.num_classes)
    if bias is None:
        raise AttackError("the last layer has no bias, so classes cannot be counted: use 'min_column' or grant the labels")
    name = last_weight(gradient, task.num_classes)
    layer, offset = seen.params[name], seen.params[name.removesuffix("weight") + "bias"]
    own = ((weight / bias[:, None]) @ layer.T + offset).softmax(1)
    usable = (bias < 0)[:, None] & own.isfinite().all(1, keepdim=True)
    with torch.no_grad():
        blind = functional_call(task.model, seen.params, (like,)).softmax(1).mean(0)
    return solved(torch.where(usable, own, blind), bias, seen.num_examples)


def solved(probability: Tensor, bias: Tensor, examples: int, spread: Tensor | None = None) -> Tensor:
    """Counts n >= 0 that make `examples` together and explain the bias's gradient, int64 (examples,).

    `probability` (classes, classes) is what the network answers to examples of each class; its variance `spread`, of the same
    shape, weighs each equation by what the counts imply, which is solved for anew a few times.
    """
    mean, wanted = probability.double().cpu().numpy(), examples * bias.double().cpu().numpy()
    counts = np.full(len(wanted), examples / len(wanted))
    for _ in range(1 if spread is None else REFINED):
        error = np.ones(len(wanted)) if spread is None else counts @ spread.double().cpu().numpy() + 1e-6
        weight = 1 / np.sqrt(error)
        rows = np.vstack([(mean.T - np.eye(len(wanted))) * weight[:, None], np.full(len(wanted), TOTAL)])
        counts, _ = nnls(rows, np.append(wanted * weight, TOTAL * examples), maxiter=30 * len(wanted))
    return _rounded(torch.from_numpy(counts).to(bias), examples)


def _noise(task: Task, rng: torch.Generator, like: Tensor) -> Tensor:
    """Blind examples (64, *shape) of the type and where the weights are; ids stay whole numbers."""
    noise = task.space.noise(64, rng)
    return noise.to(like) if noise.is_floating_point() else noise.to(like.device)


def _counted(seen: Observation, task: Task, bias: Tensor, like: Tensor) -> Tensor:
    """How often each class occurs by n_c = B (p_c - bias gradient_c), p that of such examples: int64 (examples,)."""
    with torch.no_grad():
        probability = functional_call(task.model, seen.params, (like,)).softmax(1).mean(0)
    return _rounded((seen.num_examples * (probability - bias)).clamp_min(0), seen.num_examples)


def by_rows(seen: Observation, gradient: Tensors, task: Task, like: Tensor) -> Tensor:
    """Ours, for updates that a defense scaled or spoiled: the factor of each row, by least squares over all its entries.

    A row of the last layer's gradient is (p_c - share of class c) times the features that enter the layer, here those of
    `like`. Averaging over a row outlives noise, masks and signs, and only the ratios of negative factors count.
    With several examples a class whose probability hides its share is missed.
    """
    weight, bias = last_layer(gradient, task.num_classes)
    features = _features(task, seen.params, like, last_weight(gradient, task.num_classes))
    factors = weight @ features.to(weight)
    if bias is not None:
        factors = factors + bias
    return _rounded((-factors).clamp_min(0), seen.num_examples)


def _features(task: Task, params: Tensors, x: Tensor, weight: str) -> Tensor:
    """The mean of what enters the last layer, (features,)."""
    found: list[Tensor] = []
    layer = task.model.get_submodule(weight.removesuffix(".weight"))
    handle = layer.register_forward_pre_hook(lambda _layer, inputs: found.append(inputs[0]))
    try:
        with torch.no_grad():
            functional_call(task.model, params, (x,))
    finally:
        handle.remove()
    return found[0].flatten(0, -2).mean(0)


def _rounded(share: Tensor, examples: int) -> Tensor:
    """As many of each class as its share of the whole, by largest remainders; of nothing, equal ones: int64 (examples,)."""
    share = share if bool(share.any()) else torch.ones_like(share)
    share = examples * share / share.sum()
    counts = share.floor()
    missing = int(examples - counts.sum().item())
    counts[(share - counts).argsort(descending=True)[:missing]] += 1
    return torch.repeat_interleave(torch.arange(len(share)), counts.long().cpu())


def infer(rule: LabelRule, seen: Observation, task: Task, rng: torch.Generator) -> Tensor:
    """The classes of the examples behind an observation, int64 (examples,), in no particular order."""
    if rule == "given":
        if seen.knowledge.labels is None:
            raise AttackError("labels='given' needs the labels to be granted: add --grant labels, and the ledger will show it")
        return seen.knowledge.labels
    gradient = as_gradient(seen)
    if rule == "sign":
        if seen.num_examples != 1:
            raise AttackError(
                f"the sign rule works for one example, not {seen.num_examples}: use labels='count' or 'min_column'"
            )
        return by_sign(gradient, task)
    if rule == "min_column":
        return by_min_column(gradient, task, seen.num_examples)
    blind, one = rule == "count" and seen.num_examples == 1, next(iter(gradient.values()))
    like = one.new_empty(0) if blind else _noise(task, rng, one)  # who looks at no examples draws none
    return BY_LIKE[rule](seen, gradient, task, like)


def again(rule: LabelRule, seen: Observation, task: Task, x: Tensor) -> list[Tensor]:
    """Classes by what was rebuilt, x (examples, *shape), in the place of noise; of a rule that mistrusts scales, several."""
    if seen.num_examples == 1:
        return []
    gradient, found = as_gradient(seen), dict[tuple[int, ...], Tensor]()
    for one in AGAIN.get(rule, ()):
        try:
            y = BY_LIKE[one](seen, gradient, task, x)
        except AttackError:  # no bias to count by
            continue
        found.setdefault(tuple(y.tolist()), y)
    return list(found.values())


BY_LIKE = {"count": by_count, "count_rows": by_count_rows, "ilrg": by_ilrg, "rows": by_rows}
"""Rules that ask what the network makes of examples like those that it saw."""
AGAIN = {"count": ("count",), "count_rows": ("count_rows", "count"), "rows": ("rows", "count_rows", "count")}
"""Rules that are asked again: `rows` knows no scale, so of two classes it finds one, and what a search explains decides."""
