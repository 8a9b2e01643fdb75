"""`readout`: what enters a linear layer, read off its gradient (Phong et al. 2017; Geiping et al. 2020, Proposition 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from adversary import labels as label_inference
from adversary.base import Attack, AttackError, Guess
from adversary.exact.layers import first_linear, padded, pixels_into
from adversary.labels import as_gradient, last_weight
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task

ROUNDS = 50
"""Most rounds of probabilities and inputs."""
RESIDUAL = {torch.float64: 1e-10, torch.float32: 1e-5}
"""Relative distance of the gradient from rank one below which it is that of one example, by precision."""


class Readout(NamedTuple):
    """inputs: (found, n); certified: bool (found,), whether several neurons, or the whole gradient, say the same."""

    inputs: Tensor
    certified: Tensor


@dataclass(frozen=True, kw_only=True)
class ReadOut(Attack):
    """Reads images off the first linear layer, if that reads images: one by least squares over all neurons, exactly.

    Of a batch each neuron that a single example switches on shows it alone: those that several neurons agree on are certified.
    Of softmax regression on fewer examples than classes all follow, by solving for them and their probabilities in turn.
    The loss is the share of examples that are not certified.
    """

    proof: ClassVar[float | None] = 0.0
    agreement: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """Relative distance below which two neurons show the same example."""
    labels: label_inference.LabelRule = "count"

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Read each target by itself."""
        answers = [self._target(one, task, stream) for one, stream in zip(seen, streams, strict=True)]
        return Guess.stacked(answers)

    def _target(self, seen: Observation, task: Task, stream: torch.Generator) -> Guess:
        gradient, like = as_gradient(seen), next(iter(seen.params.values()))
        layer = first_linear(task.model, gradient)
        pixels = pixels_into(task, seen.params, layer)
        if pixels is None:
            raise AttackError(f"the first linear layer, {layer}, reads features and no image: use spear, peeling or a search")
        examples = seen.num_examples
        y = label_inference.infer(self.labels, seen, task, stream).to(like.device)
        weight, bias = gradient[f"{layer}.weight"], gradient[f"{layer}.bias"]
        if examples > 1 and f"{layer}.weight" == last_weight(gradient, task.num_classes):
            read = softmax_inputs(weight, bias, seen.params[f"{layer}.weight"], seen.params[f"{layer}.bias"], y)
        else:
            read = read_out(weight, bias, examples, self.agreement)
        images = pixels.image(read.inputs.to(pixels.shift), task.space.shape).to(like)
        return Guess(padded(images, examples), y, 1 - read.certified.sum().to(like) / examples)


def read_out(weight: Tensor, bias: Tensor, examples: int, agreement: float = 1e-3) -> Readout:
    """Inputs of a linear layer with the gradients weight (m, n) and bias (m,), the certified first, at most so many."""
    residual = RESIDUAL.get(weight.dtype, 1e-2)
    weight, bias = weight.double(), bias.double()
    alone = bias @ weight / bias.square().sum().clamp_min(1e-30)
    left = (weight - bias[:, None] * alone).norm() / weight.norm().clamp_min(1e-30)
    if left <= residual:
        return Readout(alone[None], torch.ones(1, dtype=torch.bool, device=weight.device))
    if examples == 1:
        return Readout(alone[None], torch.zeros(1, dtype=torch.bool, device=weight.device))
    on = bias.abs() > 1e-4 * bias.abs().max()
    rows = weight[on] / bias[on, None]
    size = rows.norm(dim=1)
    near = torch.cdist(rows, rows) <= agreement * torch.minimum(size[:, None], size[None])
    votes = near.sum(1)
    first = ~near.tril(-1).any(1)
    order = torch.where(first, votes, -1).argsort(descending=True, stable=True)[: min(examples, int(first.sum()))]
    means = (near[order].to(rows) @ rows) / votes[order, None]
    return Readout(means, votes[order] > 1)


def softmax_inputs(weight: Tensor, bias: Tensor, weights: Tensor, biases: Tensor, y: Tensor) -> Readout:
    """Inputs of a last layer with the gradients weight (classes, n) and bias, given its weights and the classes y (examples,).

    The gradient is (P - Y)'X / B. From probabilities P follow the inputs X, from these new probabilities, and so on; certified
    if that settles on inputs with the observed gradient, and if there are more equations than unknowns.
    """
    residual = RESIDUAL.get(weight.dtype, 1e-2)
    wanted, weights = torch.cat([weight, bias[:, None]], 1).double(), weights.double()
    classes, examples = len(weight), len(y)
    truth = F.one_hot(y, classes).double()
    p = torch.full_like(truth, 1 / classes)
    x = p.new_zeros(examples, weight.shape[1])
    left = torch.ones(())
    for _ in range(ROUNDS):
        slopes = (p - truth).T / examples
        left = (slopes @ F.pad(x, (0, 1), value=1.0) - wanted).norm() / wanted.norm().clamp_min(1e-30)
        if left <= residual:
            break
        x = torch.linalg.pinv(slopes, rtol=1e-9) @ wanted[:, :-1]
        p = (x @ weights.T + biases).softmax(1)
    proved = bool(left <= residual) and examples < classes - 1
    return Readout(torch.nan_to_num(x), torch.full((examples,), proved, device=x.device))


def features_before_last(gradient: Tensors, num_classes: int, examples: int) -> Readout:
    """What enters the last layer of any model with a bias there, from a gradient of one example, or of several as above."""
    name = last_weight(gradient, num_classes)
    bias = gradient.get(name.removesuffix("weight") + "bias")
    if bias is None:
        raise AttackError("the last layer has no bias, so what enters it cannot be read off its gradient")
    return read_out(gradient[name], bias, examples)
