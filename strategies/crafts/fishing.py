"""Fishing (Wen et al., ICML 2022): a last layer that lets the gradient of few examples through to the rest of the network."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from fl_app.core.local import LocalRule, Tensors
from strategies.crafts.base import Craft, CraftError, Scene

SOME = 2000
"""Public examples by which the cut-offs are chosen."""
CERTAIN = 1000.0
"""The bias of all classes but one in the class attack: nothing is taken for that one."""


@dataclass(frozen=True, kw_only=True)
class Fishing(Craft):
    """Fishing: of the last layer one class is left, so that only examples of that class, or those on one side of a cut, count.

    The feature attack moves the cut by about one example from round to round: two rounds differ by the gradient of the
    examples between their cuts, whatever the class of these (section 4.2, over rounds).
    """

    readout: ClassVar[str] = "fishing"
    trains: ClassVar[bool] = False
    kind: Literal["feature", "class"] = "feature"
    label: Annotated[int, Field(ge=0)] = 0
    """The class that is left."""
    sharpness: Annotated[float, Field(gt=0, le=1e6)] = 5000.0
    """How steep the cut is, in units of the standard deviation of public examples."""
    step: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """The share of public examples between two cuts; 0: one in a batch."""

    def check(self, rule: LocalRule) -> None:
        """Steps along such gradients lead anywhere."""
        if rule.kind != "gradient":
            raise CraftError("fishing needs the gradient of one batch: use update='gradient', or server=loki for local steps")

    def fits(self, model: nn.Module) -> None:
        """The class must be one of the model's."""
        layer = model.get_submodule(_last(model))
        if not isinstance(layer, nn.Linear) or layer.bias is None or self.label >= layer.out_features:
            raise CraftError(f"fishing for the class {self.label} needs a last layer that is linear, and has it and a bias")

    def weights(self, honest: Tensors, server_round: int, scene: Scene) -> Tensors:
        """The last layer, of which one class is left."""
        name = _last(scene.model)
        rows, bias = torch.zeros_like(honest[f"{name}.weight"]), torch.zeros_like(honest[f"{name}.bias"])
        row, own = honest[f"{name}.weight"][self.label], honest[f"{name}.bias"][self.label]
        if self.kind == "class":
            rows[self.label] = row
            bias += CERTAIN
            bias[self.label] = 0
            return {f"{name}.weight": rows, f"{name}.bias": bias}
        with torch.no_grad():
            scores = functional_call(scene.model, honest, (scene.public[:SOME].to(rows),))[:, self.label].double()
        steep = self.sharpness / scores.std().clamp_min(1e-12).item()
        rows[self.label] = steep * row
        bias[self.label] = steep * (own.double() - self._cut(scores, server_round, scene.rule.batch_size))
        return {f"{name}.weight": rows, f"{name}.bias": bias}

    def _cut(self, scores: Tensor, server_round: int, examples: int) -> Tensor:
        """A quantile of public scores, from the lowest on by one step each round, and around."""
        step = self.step or 1 / max(3, examples)
        return torch.quantile(scores, step * (1 + (server_round - 1) % int(1 / step - 1e-9)))


def _last(model: nn.Module) -> str:
    """The last layer that has weights."""
    names: list[str] = [name for name, one in model.named_modules() if any(True for _ in one.parameters(recurse=False))]
    return names[-1]
