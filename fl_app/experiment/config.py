"""An experiment: every setting of a run, checked before anything starts."""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

import client_defenses
from client_defenses.tools.accounting import epsilon
from fl_app.core import plugins, spec
from fl_app.core.local import LocalRule
from fl_app.core.observation import Visibility
from fl_app.core.selection import Selection, select
from fl_app.data import DATASETS
from fl_app.data.partitions import PARTITIONS
from fl_app.data.splits import shares_of
from fl_app.experiment import guards
from fl_app.experiment.toml import ConfigError, Value, load_toml, toml_value
from fl_app.models import MODELS
from strategies import crafts, optimizers
from strategies.crafts import Craft
from strategies.hidden import LEAST_CLIENTS, MOST_MASKED

# Bounds that follow from the data set and from memory are in `experiment.limits`.
Count = Annotated[int, Field(ge=1, le=10**9)]
CountOrZero = Annotated[int, Field(ge=0, le=10**9)]
Steps = Annotated[int, Field(ge=1, le=10**6)]
Rate = Annotated[float, Field(gt=0)]
# `capture=1` on a command line is a number to TOML.
Numbers = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]


def _kebab(name: str) -> str:
    return name.replace("_", "-")


MAY_CHANGE = ("rounds", "eval-every", "round-timeout")
"""The settings that a resumed run may change."""


class Experiment(BaseModel):
    """The settings of a run, by the names they have in `[tool.flwr.app.config]`."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=_kebab,
        populate_by_name=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    dataset: str = Field("mnist", description="data set, see `thorns list datasets`")
    split: str = Field("official", description="'official', or train/validation/test shares such as '70/15/15'")
    partition: str = Field("iid", description="how clients share the training set, see `thorns list partitions`")
    clients: Count = Field(10, description="number of clients")
    client_examples: CountOrZero = Field(0, description="examples that a client owns; 0: its whole share")
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="share of the clients asked in a round")
    min_clients: Count = Field(1, description="fewest valid replies that change the weights")
    weighting: Literal["examples", "equal"] = Field("examples", description="weights of the mean: 'examples' or 'equal'")
    model: str = Field("lenet5", description="model, see `thorns list models`")
    normalize: bool = Field(True, description="first layer subtracts the data set's mean and divides by its std")
    defense: str = Field("none", description="defense of every client, see `thorns list defenses`")
    delta: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="report epsilon at this delta; 0: at 1e-5 if the defense promises an epsilon, else not at all"
    )
    guard: str = Field(
        "off", description="what simulated clients do about crafted weights: 'off', 'warn' or 'refuse', see docs/guard.md"
    )
    update: Literal["gradient", "delta"] = Field("gradient", description="'gradient' (FedSGD) or 'delta' (local steps)")
    batch_size: Count = Field(32, description="examples in a local batch")
    local_steps: Steps = Field(1, description="local SGD steps in a round; more than 1 needs update='delta'")
    local_lr: Rate = Field(0.1, description="local learning rate of update='delta'")
    local_examples: CountOrZero = Field(0, description="distinct examples in a round; 0: batch-size * local-steps")
    local_optimizer: Literal["sgd", "adam"] = Field("sgd", description="what takes the local steps: 'sgd' or 'adam'")
    local_momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="momentum of local SGD, anew in each round")
    local_weight_decay: Annotated[float, Field(ge=0, le=10**6)] = Field(0.0, description="weight decay of the local steps")
    local_shuffle: bool = Field(False, description="each epoch of local steps goes over the examples in an order of its own")
    optimizer: str = Field("sgd(lr=0.05, momentum=0.9)", description="server optimiser, see `thorns list optimizers`")
    rounds: Count = Field(600, description="number of rounds")
    round_timeout: Annotated[float, Field(gt=0, le=10**7)] = Field(
        3600.0, description="seconds after which a round goes on without the clients that have not answered"
    )
    eval_every: Count = Field(50, description="rounds between evaluations on the test set")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="decides every random draw")
    threads: Annotated[int, Field(ge=1, le=256)] = Field(
        1, description="CPU threads of a gradient; more pay for large models on the inline engine, and change the last bits"
    )
    device: Literal["cpu", "cuda", "auto"] = Field("cpu", description="where gradients are computed: cpu, cuda or auto")
    capture: Numbers = Field("none", description="rounds whose updates are kept for attacks: 'none', 'all', '1', '1,3', '1-5'")
    capture_clients: Numbers = Field("all", description="clients whose updates are kept: 'all' or numbers such as '0,2'")
    visibility: Literal["individual", "aggregate", "secagg", "encrypted"] = Field(
        "individual",
        description="what the server sees: 'individual' updates, or the 'aggregate'; by a protocol: 'secagg', 'encrypted'",
    )
    attack: str = Field("none", description="attack on what is captured, see `thorns list attacks`; needs capture")
    grant: str = Field(
        "", description="what the attacker is told beyond the protocol: labels, lengths, defense, statistics, repeats, order"
    )
    candidates: Annotated[int, Field(ge=1, le=10**5)] = Field(
        100, description="most examples of a target, and as many held-out ones, that an inference attack is asked about"
    )
    informed: bool = Field(True, description="also show informed attackers, see `thorns list defenses`")
    worker: Literal["inline", "ray"] = Field(
        "inline", description="where the attack runs: 'inline' after the training, 'ray' beside it"
    )
    server: str = Field(
        "honest", description="'honest', or how a malicious one attacks in the captured rounds, see `thorns list servers`"
    )
    run_dir: str = Field("", description="where results go; empty: a new folder below ./runs")

    @model_validator(mode="after")
    def _check(self) -> Self:
        spec.lookup("data set", spec.single("data set", self.dataset), DATASETS)
        spec.lookup("partition", spec.single("partition", self.partition), PARTITIONS)
        spec.lookup("model", spec.single("model", self.model), MODELS)
        optimizers.build(self.optimizer)
        defense = client_defenses.build(self.defense)
        if self.delta:
            epsilon(defense, examples=1, batch_size=1, steps=0, delta=self.delta)  # refuses a defense that promises none
        guards.build(self.guard)
        shares_of(self.split)
        if "\0" in self.run_dir:
            raise ValueError("run-dir must not hold a null character")
        if self.min_clients > self.clients:
            raise ValueError(f"min-clients={self.min_clients} is more than clients={self.clients}")
        self.craft.check(self.rule)
        self._check_visibility()
        self._check_capture()
        if self.attack != "none":
            spec.single("attack", self.attack)  # that it can be built is checked where attacks are known: not by a client
            if not self.captured_rounds:
                raise ValueError("an attack needs something to attack: set capture, e.g. capture=1 for the first round")
        return self

    def _check_visibility(self) -> None:
        if self.visibility == "individual" or (self.visibility == "aggregate" and not self.captured_rounds):
            return
        what = f"visibility='{self.visibility}'"
        if self.capture_clients.strip().lower() != "all":
            raise ValueError(f"{what} shows no single clients: leave capture-clients at 'all'")
        if self.weighting != "examples":
            raise ValueError(f"{what} is a mean by examples: it needs weighting='examples'")
        asked = max(self.min_clients, round(self.fraction * self.clients))
        if self.protocol and asked < LEAST_CLIENTS:
            raise ValueError(f"{what} hides a client among others: it needs {LEAST_CLIENTS} in a round, not {asked}")
        if self.visibility == "secagg" and asked > MOST_MASKED:
            raise ValueError(f"{what} sums {MOST_MASKED} clients in a round at most, not {asked}: lower fraction")

    def _check_capture(self) -> None:
        if far := self.captured_rounds.beyond(self.rounds):
            raise ValueError(f"capture={self.capture!r} names round {far[0]}, but rounds={self.rounds}")
        if not self.captured_clients:
            raise ValueError("capture-clients='none' keeps nothing: use capture='none'")
        if far := self.captured_clients.beyond(self.clients - 1):
            raise ValueError(f"capture-clients={self.capture_clients!r} names client {far[0]}, the last is {self.clients - 1}")

    @property
    def protocol(self) -> str:
        """What hides updates from the server: 'secagg', 'encrypted', or '' if only what is kept of them is limited."""
        return self.visibility if self.visibility in ("secagg", "encrypted") else ""

    @property
    def seen(self) -> Visibility:
        """What there is to capture."""
        return "individual" if self.visibility == "individual" else "aggregate"

    @property
    def seen_in_words(self) -> str:
        """What the server saw, for people."""
        return f"{self.seen} updates" + (f" (by {self.protocol})" if self.protocol else "")

    @property
    def captured_rounds(self) -> Selection:
        """The rounds to capture."""
        return _selected("capture", self.capture, 1, "rounds")

    @property
    def captured_clients(self) -> Selection:
        """The clients to capture."""
        return _selected("capture-clients", self.capture_clients, 0, "clients")

    @property
    def craft(self) -> Craft:
        """What the server does to the weights and the architecture; of an honest one, nothing."""
        return crafts.build(self.server)

    @property
    def warning(self) -> str:
        """Said wherever the run is shown if its server is malicious; else empty."""
        chosen = " and the ".join(self.craft.chooses)
        return f"The server is malicious: {self.server}. In the captured rounds it chose the {chosen}." if chosen else ""

    @property
    def front(self) -> str:
        """The spec of the block that the server puts in front of the model; empty if none."""
        return self.craft.front(self.clients)

    @cached_property
    def rule(self) -> LocalRule:
        """The client rule of this experiment."""
        return LocalRule.from_dict(self.run_config())

    def run_config(self) -> dict[str, Value]:
        """The settings as Flower's flat run config."""
        return {_kebab(name): getattr(self, name) for name in type(self).model_fields}

    def changed(self, **settings: Value) -> "Experiment":
        """The same experiment with other values, checked."""
        return from_run_config({**self.run_config(), **{_kebab(key): value for key, value in settings.items()}})

    def toml(self) -> str:
        """The settings as a file that `thorns run --config` takes, with what each means."""
        lines = []
        for name, field in type(self).model_fields.items():
            lines += [f"# {field.description}", f"{_kebab(name)} = {toml_value(getattr(self, name))}"]
        return "\n".join(lines) + "\n"


def _selected(setting: str, text: str, lowest: int, what: str) -> Selection:
    """What a setting selects; the error names it."""
    try:
        return select(text, lowest, what)
    except ValueError as error:
        raise ValueError(f"{setting}={error}") from None


def from_run_config(config: Mapping[str, Any]) -> Experiment:
    """Check settings and fill in the defaults; cached, because every message to a client comes with them."""
    several = [key for key, value in config.items() if isinstance(value, list | dict)]
    if several:
        raise ConfigError(f"{several[0]} is not a single value: a file with lists and tables is for `thorns sweep FILE`")
    return _from_items(tuple(sorted(config.items())))


@lru_cache(maxsize=64)
def _from_items(items: tuple[tuple[str, Any], ...]) -> Experiment:
    config = dict(items)
    valid = [_kebab(name) for name in Experiment.model_fields]
    problems = [f"unknown setting '{key}'; {spec.suggest(key, valid)}" for key in config if key not in valid]
    if problems:
        raise ConfigError("\n".join(problems))
    try:
        return Experiment.model_validate(config)
    except ValidationError as error:
        for detail in error.errors():
            place = ".".join(str(part) for part in detail["loc"])
            message = detail["msg"].removeprefix("Value error, ")
            shown = f"{place} = {detail['input']!r} is not allowed: {message[:1].lower()}{message[1:]}"
            problems.append(shown if place else message)
        raise ConfigError("\n".join(problems)) from None


SPECS = ("dataset", "partition", "model", "optimizer", "defense", "server", "attack", "attacks", "metrics")
"""The settings of runs and sweeps in which code from outside can be named."""


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a file, which may be somebody else's: code that it names must have been allowed here."""
    given = load_toml(path)
    plugins.check_named(str(path), given, SPECS)
    return given
