"""A client's guard at work: what it makes of a round before anything is sent."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from fl_app.client.guard.architecture import agreed, front_neurons, rank
from fl_app.client.guard.examples import example_checks
from fl_app.client.guard.watch import Notes
from fl_app.client.guard.weights import aligned, linear_names, weight_checks
from fl_app.client.policy import GUARD, STATE_DIR, Refused
from fl_app.core import plugins, spec
from fl_app.core.local import Tensors
from fl_app.experiment.guards import Finding, Guard, build
from fl_app.models import MODELS

log = logging.getLogger("thorns")
EARLIER = 5
"""Rounds whose losses are remembered."""


@dataclass(frozen=True, kw_only=True)
class GuardConfig(spec.Checked):
    """The settings of a guard in a client's node config.

    `guard` says what is too much and what follows. `guard_says_why` tells the server which check refused; without it the server
    reads "refused" and no more. `models` has the architectures that the client agrees to, by semicolons; empty: any that puts
    no layer in front of its network.
    """

    guard: str
    guard_says_why: bool = False
    models: str = ""


class Guarded(NamedTuple):
    """A guard, and what it goes by beside its limits."""

    guard: Guard
    says_why: bool = False
    models: Sequence[str] = ()

    def check_weights(self, params: Tensors, input_shape: tuple[int, ...], classes: int) -> None:
        """Judge the weights that were sent and the architecture, before they are used."""
        measured = dict(_remembered_checks(params))
        if not self.models:
            measured["pixels"] = front_neurons(params, prod(input_shape))
        elif not agreed(params, self.models, input_shape, classes):
            measured["model_not_agreed"] = 1.0
        self.judge(measured)

    def check_update(self, params: Tensors, update: Tensors, notes: Notes, earlier: Sequence[float]) -> list[float]:
        """Judge the examples' part and the update before it is sent; the losses to remember.

        A loss that is conspicuous is not remembered: it would make the next one inconspicuous.
        """
        measured = example_checks(notes, earlier)
        if self.guard.rank is not None:
            measured["rank"] = rank(params, notes)
        if self.guard.lone is not None:
            measured["lone"] = lone(update)
        found = self.judge(measured)
        return [*earlier, *([] if any(one.name == "loss" for one in found) else [notes.loss])][-EARLIER:]

    def judge(self, measured: Mapping[str, float]) -> list[Finding]:
        """Say what is above its limit, or near it, in one line; Refused if that is too much for this guard."""
        log.debug("guard: measured %s", measured)
        found = self.guard.findings(measured)
        why = "; ".join(map(str, found))
        if self.guard.refuses and any(one.refused for one in found):
            raise Refused(f"refused: {why}" if self.says_why else "refused", why=f"the guard does not answer: {why}")
        if found:
            log.warning("guard: %s", why)
        return found


def lone(update: Tensors) -> float:
    """As `aligned`, the largest of an update's hidden fully connected layers: that of one example is of rank 1."""
    return max((aligned(update[name].float()) for name in linear_names(update)[:-1]), default=0.0)


def guard_of(node_config: Mapping[str, Any], in_simulation: str = "off") -> Guarded | None:
    """The guard of a client: its own, else the run's in a simulation; None if it is off.

    A node that keeps state is deployed, and looks at what it is sent whatever the run says: it warns unless told otherwise.
    """
    own = {key: value for key, value in node_config.items() if key in GUARD}
    if "guard" not in own:
        deployed = STATE_DIR in node_config
        own["guard"] = "warn" if deployed and in_simulation == "off" else in_simulation
    return _guarded(tuple(sorted(own.items())))


@lru_cache(maxsize=16)
def _guarded(items: tuple[tuple[str, Any], ...]) -> Guarded | None:
    settings = {key.replace("-", "_"): value for key, value in items}
    config = GuardConfig(**spec.check("the node config", GuardConfig, settings, lambda name: name.replace("_", "-")))
    guard = build(config.guard)
    models = tuple(one.strip() for one in config.models.split(";") if one.strip())
    for one in models:
        plugins.allow(plugins.named_in(one))
        spec.lookup("model", spec.single("model", one), MODELS)
    if guard is None and (models or config.guard_says_why):
        raise spec.SpecError("models and guard-says-why are the guard's, which is off: set guard, or leave them out")
    return Guarded(guard, config.guard_says_why, models) if guard else None


class _Checked(NamedTuple):
    params: Tensors
    measured: dict[str, float]


_last = _Checked({}, {})


def _remembered_checks(params: Tensors) -> dict[str, float]:
    """The checks of weights; clients of a simulation in one process are sent the same tensors, which nobody may change."""
    global _last
    same = params.keys() == _last.params.keys() and all(_last.params[name] is value for name, value in params.items())
    if not same or not params:
        _last = _Checked(dict(params), weight_checks(params))
    return _last.measured
