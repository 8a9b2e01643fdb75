"""What one round shows of all targets of a search, stacked."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fl_app.core.local import Tensors
from fl_app.core.observation import Observation

ORDER = "order"


class RoundView(NamedTuple):
    """A round: its weights, and the updates of the targets, (targets, *parameter shape)."""

    params: Tensors
    observed: Tensors
    told: Tensors
    """Under ORDER, if that was granted, which examples the steps used one after the other, (targets, steps * batch size)."""

    def in_order(self, x: Tensor) -> Tensor:
        """Examples or labels (targets, seeds, examples, ...) as they come in the steps."""
        if ORDER not in self.told:
            return x
        return torch.stack([one[:, order] for one, order in zip(x, self.told[ORDER], strict=True)])


def view_of(seen: Sequence[Observation]) -> RoundView:
    """The view of one round, with an observation of each target."""
    params = seen[0].params
    observed = {name: torch.stack([one.update[name] for one in seen]) for name in seen[0].update}
    orders = [one.knowledge.order for one in seen if one.knowledge.order is not None]
    device = next(iter(params.values())).device
    return RoundView(params, observed, {ORDER: torch.stack(orders).flatten(1).to(device)} if orders else {})
