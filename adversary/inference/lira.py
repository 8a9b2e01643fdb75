"""LiRA, offline (Carlini et al. 2022, section 4.C): is the network surer of a candidate than networks that never saw it?"""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor
from torch.func import grad, vmap

from adversary.base import AttackError, Public
from adversary.inference.base import Membership, confidences
from fl_app.core.local import Tensors, loss_of
from fl_app.core.observation import Candidates, Observation, Task

Count = Annotated[int, Field(ge=1, le=10**6)]


@dataclass(frozen=True, kw_only=True)
class LiRA(Membership):
    """How unlikely the global network's confidence in a candidate is for shadow networks, each trained on half of the public.

    All shadows are trained at once, from weights of their own. Their spread is taken over all candidates together, as the paper
    does with few shadows.
    """

    trained: ClassVar[bool] = True
    at_weights: ClassVar[bool] = False
    at_model: ClassVar[bool] = True

    shadows: Annotated[int, Field(ge=2, le=1024)] = 10
    """Networks that are trained to compare with."""
    steps: Count = 250
    """Of SGD, for each of them."""
    batch: Count = 32
    """Examples per step."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """The weights of the shadows, (shadows, *parameter shape), by SGD on random halves of the public examples."""
        half = len(public.y) // 2
        if half < 1:
            raise AttackError("lira trains shadows on half of the public examples, and there are too few")
        weights = _stacked([_reset(task, seen, int(torch.randint(2**62, (), generator=rng))) for _ in range(self.shadows)])
        halves = torch.stack([torch.randperm(len(public.y), generator=rng)[:half] for _ in range(self.shadows)])
        slopes = vmap(grad(lambda params, x, y: loss_of(task.model, params, x, y)))
        velocity = {name: torch.zeros_like(value) for name, value in weights.items()}
        for _ in range(self.steps):
            drawn = halves.gather(1, torch.randint(half, (self.shadows, self.batch), generator=rng))
            found = cast(Tensors, slopes(weights, public.x[drawn], public.y[drawn]))
            velocity = {name: self.momentum * velocity[name] + value for name, value in found.items()}
            weights = {name: value - self.lr * velocity[name] for name, value in weights.items()}
        return {name: value.detach() for name, value in weights.items()}

    def shortened(self, iterations: int) -> "LiRA":
        """The same with shadows of so many steps."""
        return replace(self, steps=iterations)

    def believe(self, seen: Observation, task: Task, asked: Candidates) -> Tensor:
        """Standard deviations above the shadows' mean, (candidates,)."""
        shadows = vmap(lambda params: confidences(task, params, asked))(self.learned)
        spread = shadows.var(0).mean().sqrt().clamp_min(1e-6)
        return (confidences(task, seen.params, asked) - shadows.mean(0)) / spread


def _stacked(models: list[Tensors]) -> Tensors:
    return {name: torch.stack([one[name] for one in models]) for name in models[0]}


def _reset(task: Task, seen: Observation, seed: int) -> Tensors:
    """Weights as torch initialises the layers of the network, on the device of what was seen."""
    model = deepcopy(task.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in model.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
    found = dict(model.named_parameters())
    return {name: found[name].detach().to(value.device) for name, value in seen.params.items()}
