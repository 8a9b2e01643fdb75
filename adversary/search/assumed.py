"""A rule that the attacker assumes, where the clients keep to themselves how they take their local steps."""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from adversary.search.observers import Local, Observer
from fl_app.core.local import Tensors, local_update


@dataclass(frozen=True, kw_only=True)
class Assumed(Observer):
    """Local steps with another momentum and weight decay than the rule names: a guess, whose loss says how well it fits."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=10**6)] = 0.0

    def update(self, local: Local, unknown: Tensors) -> Tensors | None:
        """The update by the assumed rule; a gradient takes no local steps."""
        if local.rule.kind == "gradient":
            return None
        momentum = self.momentum if local.rule.optimizer == "sgd" else 0.0  # Adam has none to set
        rule = replace(local.rule, momentum=momentum, weight_decay=self.weight_decay)
        return local_update(*local._replace(rule=rule)[:-1])
