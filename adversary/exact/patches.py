"""`patches`: an image from the gradients of a vision transformer's positions and of its patch embedding, in one solve.

A patch's token is E x + e + position, so the gradient by the position is that by the token: with D the gradients by all
positions (patches, dim) of one image, the gradient of E is D'X with the patches X as rows. Ours; no condition on what follows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adversary import labels as label_inference
from adversary.base import Attack, AttackError, Guess
from adversary.exact.layers import pixels_into
from adversary.labels import as_gradient
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task


class Embedding(NamedTuple):
    """A patch embedding: the names of its convolution and of the positions, and whether a class token comes first."""

    layer: str
    position: str
    tokens_before: int


@dataclass(frozen=True, kw_only=True)
class Patches(Attack):
    """Solves for the patches of an image, given the gradients of learned positions; the loss is the relative residual.

    Below 1e-4 (from float32) the answer is exact. Of a batch the solve gives one image, in which each patch is a mixture of
    the examples' patches, weighted by their gradients; it stands for all of them and the residual says that it does.
    """

    proof: ClassVar[float | None] = 1e-4
    labels: label_inference.LabelRule = "count"

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Solve for each target."""
        answers = []
        for one, stream in zip(seen, streams, strict=True):
            image, residual = solve(as_gradient(one), one.params, task)
            x = image.expand(one.num_examples, *image.shape)
            y = label_inference.infer(self.labels, one, task, stream).to(x.device)
            answers.append(Guess(x, y, residual))
        return Guess.stacked(answers)


def solve(gradient: Tensors, params: Tensors, task: Task) -> tuple[Tensor, Tensor]:
    """(the image of an update of one example, the relative residual of its equations)."""
    layer, position, before = embedding_of(task, gradient)
    like = gradient[position]
    slopes = gradient[position].double().flatten(0, -2)[before:]
    wanted = gradient[f"{layer}.weight"].double().flatten(1)
    if len(slopes) > slopes.shape[1]:
        raise AttackError(f"{len(slopes)} patches are more than the {slopes.shape[1]} dimensions of a token: they mix")
    # By the pseudo-inverse: some positions may have no gradient at all.
    found = torch.linalg.pinv(slopes.T, rtol=1e-12) @ wanted
    residual = (slopes.T @ found - wanted).norm() / wanted.norm().clamp_min(1e-30)
    conv = task.model.get_submodule(layer)
    assert isinstance(conv, nn.Conv2d)
    image = F.fold(found.T[None], task.space.shape[1:], conv.kernel_size, stride=conv.stride)[0]
    pixels = pixels_into(task, params, layer)
    if pixels is None:
        raise AttackError(f"the patches that {layer} embeds are not those of the image")
    return pixels.image(image.flatten(), task.space.shape).to(like), residual.to(like)


def embedding_of(task: Task, gradient: Tensors) -> Embedding:
    """Where a model embeds patches: a convolution without overlap, and positions of as many tokens; AttackError if nowhere."""
    for layer, conv in task.model.named_modules():
        if not isinstance(conv, nn.Conv2d) or conv.kernel_size != conv.stride or f"{layer}.weight" not in gradient:
            continue
        sides = [side // size for side, size in zip(task.space.shape[1:], conv.kernel_size, strict=True)]
        patches = math.prod(sides)
        for name, value in gradient.items():
            tokens = value.numel() // conv.out_channels
            if value.ndim >= 2 and value.shape[-1] == conv.out_channels and 0 <= tokens - patches <= 1 and tokens > 1:
                return Embedding(layer, name, tokens - patches)
    raise AttackError("the model embeds no patches with learned positions, or their gradient was not sent")
