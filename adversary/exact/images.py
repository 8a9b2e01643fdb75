"""Images that have given features: what is left to search for once an update is taken apart."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from adversary.base import Public
from adversary.exact.features import inputs_of
from adversary.learned.ridge import fitted
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
            variables = {"x": task.space.hull(moved["x"])}
        return variables["x"][:, 0, 0]


def learned_map(task: Task, params: Tensors, layer: str, public: Public) -> Tensors:
    """A linear map from what enters a layer to the image, learned from public examples at these weights."""
    with torch.no_grad():
        parts = [inputs_of(task.model, params, x, [layer])[0].flatten(1) for x in public.x.split(500)]
    features = torch.cat(parts)
    scale = features.std(0).clamp_min(1e-6)
    return {**fitted(features / scale, public.x.flatten(1)), "scale": scale}


def rebuilt(
    features: Tensor, layer: str, task: Task, params: Tensors, learned: Tensors, search: ImageSearch, noise: Tensor
) -> Tensor:
    """Images (n, *shape) with these features (n, k): from the learned map, or the mean of those from noise (seeds, *shape)."""
    if learned:
        x = (features / learned["scale"] - learned["middle"]) @ learned["map"] + learned["mean"]
        start = task.space.hull(x.view(-1, *task.space.shape))
        near = replace(search, lr=search.lr / 5, tv=0.3, colour=0.3)
        return near.run(features, start, task, params, layer)
    seeds = len(noise) // len(features)
    found = search.run(features.repeat(seeds, 1), noise, task, params, layer)
    return found.view(seeds, len(features), *task.space.shape).mean(0)
