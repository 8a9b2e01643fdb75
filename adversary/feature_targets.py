"""The last layer's input as a target: the layer's gradient gives it away, and it splits a batch into single examples."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from adversary.base import AttackError
from adversary.exact.features import inputs_of
from adversary.labels import as_gradient, last_layer, last_weight
from adversary.priors import Penalty, Prior, Scene
from fl_app.core.local import Tensors

TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class FeatureTargets(Prior):
    """Squared distance of what enters the last layer from what its gradient says of it, over the size of that.

    The features are those of FGLA (Xue et al. 2023, section 4); as a prior they are in public code with a weight of 0.1, there
    by the plain ratio. Examples of one class share a target, their mean. Relative to the size (ours).
    """

    def bind(self, scene: Scene) -> Penalty:
        """The distance, at the weights of each round."""
        if scene.classes is None:
            raise AttackError("the prior features needs classes before the search: use another label rule than joint")
        task, same = scene.task, scene.classes[:, :, None] == scene.classes[:, None]
        share = same.float() / same.sum(-1, keepdim=True)
        layer = last_weight(scene.targets[0][0].update, task.num_classes).removesuffix(".weight")
        rounds = []
        for seen in zip(*scene.targets, strict=True):
            pairs = zip(seen, scene.classes, strict=True)
            found = torch.stack([features_of(as_gradient(one), y, task.num_classes) for one, y in pairs])
            rounds.append((seen[0].params, found))

        def penalty(x: Tensor) -> Tensor:
            seeds, flat = x.shape[1], x.flatten(0, 1)
            terms = []
            for params, wanted in rounds:
                (entered,) = vmap(lambda x, at=params: inputs_of(task.model, at, x, [layer]), randomness="different")(flat)
                gap = share.repeat_interleave(seeds, 0) @ entered - wanted.repeat_interleave(seeds, 0)
                size = wanted.square().sum(-1).repeat_interleave(seeds, 0) + TINY
                terms.append((gap.square().sum(-1) / size).mean(-1))
            return self.weight * torch.stack(terms).mean(0).view(x.shape[:2])

        return penalty


def features_of(gradient: Tensors, y: Tensor, num_classes: int) -> Tensor:
    """What entered the last layer for each example, the mean over those of its class: (examples, features).

    A class's row is what its own examples add to it, once the share of all others is taken away, as rows of absent classes
    show it.
    """
    weight, bias = last_layer(gradient, num_classes)
    if bias is None:
        raise AttackError("the prior features needs a last layer with a bias")
    absent = torch.ones(num_classes, dtype=torch.bool, device=y.device)
    absent[y] = False
    others = (1 - (y[:, None] == y).float().mean(1))[:, None]  # of the examples, by class
    if not bool(absent.any()):
        others = torch.zeros_like(others)
    row = weight[y] - others * (weight[absent].sum(0) / absent.sum().clamp_min(1))
    one = bias[y] - others[:, 0] * (bias[absent].sum() / absent.sum().clamp_min(1))
    return row / torch.where(one.abs() < TINY, TINY, one)[:, None]
