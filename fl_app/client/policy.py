"""What a client decides for itself, whatever the server says: read from its node's own configuration.

    flower-supernode --node-config 'partition-id=0 num-partitions=2 defense="dp_sgd(clip=1.0, noise=1.0)"' ...

`--node-config client.toml` takes the same settings from a file. Without any of them a client does what the run says.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

import torch
from pydantic import Field

import client_defenses
from client_defenses import Chain, Defense
from client_defenses.base import beyond_messages
from client_defenses.dp_gaussian import DPGaussian
from client_defenses.dp_laplace import DPLaplace
from client_defenses.dp_sgd import DPSGD
from client_defenses.mask import Mask
from client_defenses.none import NoDefense
from fl_app import data
from fl_app.core import plugins, spec
from fl_app.data.splits import Splits
from fl_app.experiment.assets import Assets, assets_of
from fl_app.experiment.config import Experiment

log = logging.getLogger("thorns")
STATE_DIR = "state-dir"
"""Where the node keeps its state: no setting of the client's protection, so it alone makes no own configuration."""
ALLOW = "allow"
"""Code from outside Thorns that a run may name here, as module:Name, by commas; it alone makes no own configuration either."""
KEY_FILE = "encryption-key-file"
"""The key that clients encrypt with; a client with one answers encrypted runs alone. It makes no own configuration either."""
GUARD = ("guard", "guard-says-why", "models")
"""The settings of the client's guard (`fl_app.client.guard`): it changes nothing in what is sent, so they make none either."""
NOT_OWN = ("partition-id", "num-partitions", STATE_DIR, ALLOW, KEY_FILE, *GUARD)
NAMED = ("dataset", "partition", "model", "optimizer", "defense", "server")
"""The settings of a run that a client builds something from; attacks are none of its business."""


class Refused(ValueError):
    """A request that this client does not answer; the server reads the message, so it speaks of settings and never of data."""

    def __init__(self, said: str, *, why: str = "") -> None:
        super().__init__(said)
        self.why = why or said
        """What the client's own log says."""


@dataclass(frozen=True, kw_only=True)
class OwnConfig(spec.Checked):
    """The settings of one client; a server can neither read nor change them.

    `defense` is what this client applies, in place of the run's. `demand` leaves the choice to the run, but not below this
    (see `at_least`). `min_examples` is the fewest examples in an update. `dataset` is the client's own data, all of it, in
    place of its share of the run's. Draws come from the secret in `secret_seed_file`, which is made if it is not there, or
    without one from the operating system; the run's seed, which the server knows, decides none.
    """

    defense: str = ""
    demand: str = ""
    min_examples: Annotated[int, Field(ge=0)] = 0
    dataset: str = ""
    secret_seed_file: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.defense and self.demand:
            raise spec.SpecError("defense replaces what the run says, so there is nothing left to demand: keep one of the two")
        for text in (self.defense, self.demand):
            if text:
                client_defenses.build(text)
        if self.dataset:
            spec.lookup("data set", spec.single("data set", self.dataset), data.DATASETS)


def own_config(node_config: Mapping[str, Any]) -> OwnConfig | None:
    """The settings in a node's configuration; None if it has none, as in simulations.

    Code that it names for the client itself is allowed by that, and so is what it allows runs to name.
    """
    plugins.allow(name for name in str(node_config.get(ALLOW, "")).split(",") if name.strip())
    for key in ("defense", "demand", "dataset"):
        plugins.allow(plugins.named_in(str(node_config.get(key, ""))))
    return _from_items(tuple(sorted((key, value) for key, value in node_config.items() if key not in NOT_OWN)))


@lru_cache(maxsize=16)
def _from_items(items: tuple[tuple[str, Any], ...]) -> OwnConfig | None:
    settings = {key.replace("-", "_"): value for key, value in items}
    # An unknown name is an error: a misspelt defense must not be none.
    kebab = lambda name: name.replace("_", "-")  # noqa: E731  as the file has them
    return OwnConfig(**spec.check("the node config", OwnConfig, settings, kebab)) if settings else None


STRONGER: dict[type[Defense], str] = {DPGaussian: "scale", DPLaplace: "scale", DPSGD: "noise", Mask: "ratio"}
"""The one setting of a defense of which more is more: noise to which noise can be added, zeros to which zeros can."""


def at_least(given: Defense, least: Defense) -> bool:
    """Whether anybody who sees what `least` sends could make from it what `given` sends, without the data.

    Then no attacker learns more from `given`, whoever he is. It holds if `given` has the parts of `least` in the same
    order with the same settings, the last of them with as much or more of its noise or zeros, and after them only parts that
    work on messages. Whatever else may be stronger by some measure counts as different: nobody has shown that it is.
    """
    have, want = _parts(given), _parts(least)
    if not want:
        return True
    if len(have) < len(want) or any(beyond_messages(part) for part in have[len(want) :]):
        return False
    last, demanded = have[len(want) - 1], want[-1]
    more = STRONGER.get(type(demanded))
    if more and type(last) is type(demanded) and getattr(last, more) >= getattr(demanded, more):
        last = demanded if replace(last, **{more: getattr(demanded, more)}) == demanded else last
    return [*have[: len(want) - 1], last] == want


def _parts(defense: Defense) -> list[Defense]:
    parts = defense.parts if isinstance(defense, Chain) else [defense]
    return [part for part in parts if not isinstance(part, NoDefense)]


def check_run(run_config: Mapping[str, Any]) -> None:
    """Refuse a run that names code which this client has not allowed, before anything of it is looked for."""
    try:
        plugins.check_named("the run", dict(run_config), NAMED)
    except plugins.NotAllowed as error:
        raise Refused(str(error)) from None


def own_assets(own: OwnConfig, experiment: Experiment, client: int) -> Assets:
    """What this client works with: the run's parts, except what it decides itself; Refused if the run is below its demands."""
    if own.demand and not at_least(client_defenses.build(experiment.defense), client_defenses.build(own.demand)):
        raise Refused(
            f"this client demands the defense '{own.demand}' or a stronger one, but the run has '{experiment.defense}'"
        )
    if own.defense:
        # The run's delta asks for the epsilon of the run's defense; this one may promise none.
        experiment = experiment.changed(defense=own.defense, delta=0.0)
    assets = assets_of(experiment)
    if own.dataset:
        assets = _with_own_data(own, assets)
    available = min(experiment.rule.num_examples, len(assets.shares[client]))
    if available < own.min_examples:
        raise Refused(f"this client demands at least {own.min_examples} examples in an update, but the run has {available}")
    return assets


def _with_own_data(own: OwnConfig, assets: Assets) -> Assets:
    """The same with the client's own examples; model, classes and normalisation stay those of the run's data set."""
    try:
        found = data.load(own.dataset)
    except (ValueError, OSError) as error:
        log.error("this client's own data cannot be read: %s", error)
        raise Refused("this client's own data cannot be read; its log says why") from None
    shape = tuple(assets.splits.train.x.shape[1:])
    if found.input_shape != shape or found.num_classes != assets.num_classes:
        ours, theirs = f"{found.input_shape} in {found.num_classes}", f"{shape} in {assets.num_classes}"
        log.error("this client's own images are %s classes, those of the run %s classes", ours, theirs)
        raise Refused("this client's own data have another shape or number of classes than the run's data set")
    everything = torch.arange(len(found.train))
    empty = found.train.part(slice(0))
    return replace(assets, splits=Splits(found.train, empty, empty), shares=[everything] * len(assets.shares))
