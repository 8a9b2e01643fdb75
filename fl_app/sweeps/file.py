"""The sweep file: what is to be varied, with which seeds, targets and attacks, at which scale."""

import re
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

import adversary
from fl_app.core import spec
from fl_app.experiment.config import Experiment, read_toml
from fl_app.experiment.grants import parse_grants
from fl_app.experiment.toml import ConfigError, Value, toml_value
from fl_app.scoring.metrics import with_plugged
from fl_app.sweeps.grid import values_of

Setting = Value | list[Value]
Given = dict[str, Setting]
Table = dict[str, Any]
"""Settings, and below names of their own the tables within the table."""
OF_ATTACKS = {"attacks": list, "grant": str, "informed": bool, "runs": list}
"""What a table of targets may say of its attacks, and the type of each."""
ELSEWHERE = {
    "seed": "the seeds stand above the tables: seeds = [0, 1, 2]",
    "attack": 'attacks stand above the tables, or in a table of targets: attacks = ["idlg"]',
    "grant": 'it stands above the tables, or in a table of targets: grant = "labels"',
    "informed": "it stands above the tables, or in a table of targets: informed = false",
    "worker": "a sweep attacks where it trains: leave it out",
    "run-dir": "a sweep names its own folders: leave it out, and choose the whole with --out",
}


class Targets(NamedTuple):
    """Who is attacked, and by whom."""

    name: str
    """Of the table [targets.NAME]; empty if there is only one kind of targets."""
    settings: Given | None
    """Those that differ from the settings of the training; None: the training itself is attacked."""
    attacks: list[str]
    grants: tuple[str, ...]
    informed: bool
    runs: list[str]
    """The tables [run.NAME] that it goes with."""


class Sweep(BaseModel):
    """A sweep as it was written: lists and braces are not yet expanded."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True
    )

    title: str = "A sweep"
    about: str = ""
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [0]
    attacks: list[str] = []
    grant: str = ""
    informed: bool = True
    lpips: bool = True
    noise_ratio: bool = False
    judge: bool = False
    metrics: list[str] = []
    run: Table = {}
    targets: Table | None = None

    @model_validator(mode="before")
    @classmethod
    def _attacked_by_default(cls, given: Any) -> Any:
        """Where something is kept for attacks and none is named, it is the default one; `attacks = []` asks for none."""
        if isinstance(given, dict) and "attacks" not in given and _unnamed(given.get("run"), given.get("targets")):
            return {**given, "attacks": [adversary.DEFAULT]}
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds = {self.seeds} names one twice")
        _named("metrics", with_plugged, self.metrics)
        _check_table("run", self.run, {})
        _check_table("targets", self.targets or {}, OF_ATTACKS)
        own = _tables(self.targets or {})
        for name, given in own.items():
            for key in given.get("runs", []):
                if key not in self.runs:
                    raise ValueError(f"{_place('targets', name)} runs: there is no table [run.{key}]; {self._named_runs()}")
        for targets in self.attacked:
            where = _place("targets", targets.name)
            above = "attacks" if "attacks" not in own[targets.name] else f"{where} attacks"
            for text in targets.attacks:
                _named(f"{above}: {text!r}", adversary.build, text)
            if self.targets is not None and not targets.attacks:
                raise ValueError(f"{where} is what attacks work on, but there are none: add attacks = [...], or leave it out")
        for name in self.runs:
            if not any(name in targets.runs for targets in self.attacked):
                raise ValueError(f"[run.{name}] goes with no table of targets: name it in the runs of one")
        return self

    def _named_runs(self) -> str:
        return f"there are {', '.join(self.runs)}" if any(self.runs) else "[run] has no tables within it"

    @property
    def runs(self) -> dict[str, Given]:
        """Name -> the settings of each table of runs."""
        return _tables(self.run)

    @property
    def attacked(self) -> list[Targets]:
        """Each kind of targets; the training itself if no table says otherwise."""
        found = []
        for name, given in _tables(self.targets or {}).items():
            attacks = given.get("attacks", self.attacks)
            found.append(
                Targets(
                    name,
                    None if self.targets is None else {key: value for key, value in given.items() if key not in OF_ATTACKS},
                    [str(text) for text in _named("attacks", values_of, attacks)] if attacks else [],
                    _named("grant", parse_grants, [given.get("grant", self.grant)]),
                    given.get("informed", self.informed),
                    given.get("runs", list(self.runs)),
                )
            )
        return found

    def toml(self) -> str:
        """The sweep as a file."""
        above = {name: getattr(self, name) for name in type(self).model_fields if name not in ("run", "targets")}
        lines = [f"{name.replace('_', '-')} = {_written(value)}" for name, value in above.items()]
        for table, given in (("run", self.run), ("targets", self.targets)):
            if given is not None:
                own = {key: value for key, value in given.items() if isinstance(value, dict)}
                shared = {key: value for key, value in given.items() if key not in own}
                for name, settings in {table: shared, **{f"{table}.{name}": value for name, value in own.items()}}.items():
                    lines += [f"[{name}]", *(f"{key} = {_written(value)}" for key, value in settings.items())]
        return "\n".join(lines) + "\n"


def _tables(given: Table) -> dict[str, Table]:
    """Name -> the settings of each table within a table, with those that they share; one without a name if there is none."""
    shared = {key: value for key, value in given.items() if not isinstance(value, dict)}
    own = {key: {**shared, **value} for key, value in given.items() if isinstance(value, dict)}
    return own or {"": shared}


def _unnamed(run: Any, targets: Any) -> bool:
    """Whether there are targets for which no attack is named."""
    if isinstance(targets, dict):
        return any("attacks" not in one for one in _tables(targets).values())
    return isinstance(run, dict) and any(one.get("capture", "none") != "none" for one in _tables(run).values())


def _place(table: str, name: str) -> str:
    return f"[{table}.{name}]" if name else f"[{table}]"


def _check_table(table: str, given: Table, more: dict[str, type]) -> None:
    """Refuse names that are no settings, and values that are none; `more` are the keys that a table has beside settings."""
    valid = [*(name for name in Experiment().run_config() if name not in ELSEWHERE), *more]
    for name in (key for key, value in given.items() if isinstance(value, dict)):
        if name in valid or name in ELSEWHERE or name == "training" or not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
            words = "give it another name, of small letters, digits and -, that is not that of a setting"
            raise ValueError(f"[{table}.{name}]: {words}")
    for name, settings in _tables(given).items():
        where = _place(table, name)
        for key, value in settings.items():
            if key in ELSEWHERE and key not in more:
                raise ValueError(f"{where} {key}: {ELSEWHERE[key]}")
            if key not in valid:
                raise ValueError(f"{where} there is no setting '{key}'; {spec.suggest(key, valid)}")
            if key in more and not (isinstance(value, more[key]) and (not isinstance(value, list) or _texts(value))):
                kind = {list: "a list of texts", str: "a text", bool: "true or false"}[more[key]]
                raise ValueError(f"{where} {key} = {value!r} is not allowed: it is {kind}")
            for one in value if isinstance(value, list) else [value]:
                if not isinstance(one, bool | int | float | str):
                    raise ValueError(f"{where} {key} = {value!r} is not allowed: a value or a list of values is needed")
            _named(f"{where} {key}", values_of, value)


def _texts(value: list[Any]) -> bool:
    return all(isinstance(one, str) for one in value)


def _named(name: str, check: Any, value: Any) -> Any:
    """What a check gives; its complaint comes with the name of what it is about."""
    try:
        return check(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _written(value: Any) -> str:
    return f"[{', '.join(toml_value(one) for one in value)}]" if isinstance(value, list) else toml_value(value)


def sweep_of(given: dict[str, Any], source: str) -> Sweep:
    """Check a sweep; what is wrong is said with the name of the file and of the setting."""
    valid = [name.replace("_", "-") for name in Sweep.model_fields]
    run_settings = Experiment().run_config()
    if given and given.keys() <= run_settings.keys():
        raise ConfigError(f"{source} holds the settings of one run: `thorns run --config {source}`, or see docs/sweeps.md")
    for key in given:
        if key not in valid:
            hint = f"it belongs into the table [run]: write it below a line [run] in {source}" if key in run_settings else ""
            raise ConfigError(f"{source}: there is no '{key}' above the tables; {hint or spec.suggest(key, valid)}")
    try:
        return Sweep.model_validate(given)
    except ValidationError as error:
        problems = []
        for detail in error.errors():
            place = ".".join(str(part) for part in detail["loc"])
            message = detail["msg"].removeprefix("Value error, ")
            problems.append(f"{source}: {place} = {detail['input']!r}: {message}" if place else f"{source}: {message}")
        raise ConfigError("\n".join(dict.fromkeys(problems))) from None


def read_sweep(path: Path, scale: str = "") -> tuple[Sweep, str]:
    """(the sweep in a file at one of its scales, the text that gives the same sweep again)."""
    given = read_toml(path)
    if not given:
        raise ConfigError(f"{path} is empty: a sweep has at least a table [run] (docs/sweeps.md)")
    scales = given.pop("scale", {})
    if not isinstance(scales, dict) or not all(isinstance(one, dict) for one in scales.values()):
        raise ConfigError(f"{path}: a scale is a table, e.g. [scale.small], with what it changes")
    if not scale:
        return sweep_of(given, str(path)), path.read_text(encoding="utf-8")
    if scale not in scales:
        known = spec.suggest(scale, list(scales)) if scales else "it has none: leave --scale out"
        raise ConfigError(f"{path} has no scale '{scale}'; {known}")
    made = sweep_of(_merged(given, scales[scale]), f"{path}, scale {scale}")
    return made, made.toml()


def _merged(given: Table, changes: Table) -> Table:
    """One table changed by another, table by table: what is not a table is replaced."""
    both = [key for key, value in changes.items() if isinstance(value, dict) and isinstance(given.get(key), dict)]
    return {**given, **changes, **{key: _merged(given[key], changes[key]) for key in both}}
