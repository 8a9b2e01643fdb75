"""Distances of updates as attacks on text take them: tensor by tensor, so that small ones count as much as large ones."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from adversary.objectives import TINY, Objective, cosine, squared_l2
from adversary.priors import Weight
from fl_app.core.local import Tensors


@dataclass(frozen=True, kw_only=True)
class CosineTensors(Objective):
    """The mean over tensors of 1 - cosine (LAMP, Balunovic et al. 2022); one of zeros counts 1 and pulls nowhere."""

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The mean."""
        return torch.stack([cosine({name: dummy[name]}, {name: value}) for name, value in seen.items()]).mean()


@dataclass(frozen=True, kw_only=True)
class Tag(Objective):
    """Squared distance plus `l1` times the absolute one (TAG, Deng et al. 2021, Eq. 4), over the squared size of what was seen.

    The paper's weights of layers are equal here, as in LAMP's runs of it. The size makes rates the same for all models (ours).
    """

    l1: Weight = 0.01

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The sum."""
        absolute = torch.stack([(dummy[name] - value).abs().sum() for name, value in seen.items()]).sum()
        size = torch.stack([value.square().sum() for value in seen.values()]).sum()
        return (squared_l2(dummy, seen) + self.l1 * absolute) / (size + TINY)


OBJECTIVES: dict[str, Callable[..., Objective]] = {"cosine_tensors": CosineTensors, "tag": Tag}
