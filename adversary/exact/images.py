"""Images that have given features: what is left to search for once a batch is taken apart."""

from dataclasses import dataclass

import torch
from torch import Tensor

from adversary.exact.features import inputs_of
from adversary.priors import Weight, colour_variation, total_variation
from adversary.search.optimizers import Adam, AdamSteps, Count, Rate
from fl_app.core.local import Tensors
from fl_app.core.observation import Task
from fl_app.core.spec import Checked


@dataclass(frozen=True, kw_only=True)
class ImageSearch(Checked):
    """Relative squared distance of the features, variation of brightness and of colour, under signed Adam."""

    iterations: Count = 300
    lr: Rate = 0.1
    tv: Weight = 1.0
    colour: Weight = 1.0

    def run(self, wanted: Tensor, starts: Tensor, task: Task, params: Tensors, layer: str) -> Tensor:
        """Images (n, *shape) whose inputs to a layer come close to those wanted (n, features), each by itself."""
        steps = AdamSteps(Adam(iterations=self.iterations, lr=self.lr, signed=True, decay=True))
        size = wanted.square().sum(1).clamp_min(1e-30)
        variables: Tensors = {"x": starts[:, None, None]}
        for _ in range(self.iterations):
            x = variables["x"].detach().requires_grad_()
            (ours,) = inputs_of(task.model, params, x[:, 0, 0], [layer])
            loss = ((ours.flatten(1) - wanted).square().sum(1) / size)[:, None]
            loss = loss + self.tv * total_variation(x) + self.colour * colour_variation(x)
            (slope,) = torch.autograd.grad(loss.sum(), x)
            moved = steps.step({"x": x.detach()}, {"x": slope}, loss.detach())
            variables = {"x": task.space.clamp(moved["x"])}
        return variables["x"][:, 0, 0]
