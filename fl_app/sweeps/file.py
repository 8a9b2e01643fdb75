"""The sweep file: what is to be varied, with which seeds and attacks."""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

import adversary
from fl_app.core import spec
from fl_app.experiment.config import ConfigError, Experiment, Value, read_toml, toml_value
from fl_app.experiment.grants import parse_grants
from fl_app.sweeps.grid import values_of

Setting = Value | list[Value]
Given = dict[str, Setting]
ELSEWHERE = {
    "seed": "the seeds stand above the tables: seeds = [0, 1, 2]",
    "attack": 'attacks stand above the tables: attacks = ["idlg"]',
    "grant": 'it stands above the tables: grant = "labels"',
    "adaptive": "it stands above the tables: adaptive = false",
    "worker": "a sweep attacks where it trains: leave it out",
    "run-dir": "a sweep names its own folders: leave it out, and choose the whole with --out",
}


class Sweep(BaseModel):
    """A sweep as it was written: lists and braces are not yet expanded."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True
    )

    title: str = "A sweep"
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [0]
    attacks: list[str] = []
    grant: str = ""
    adaptive: bool = True
    lpips: bool = True
    noise_ratio: bool = False
    run: Given = {}
    targets: Given | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds = {self.seeds} names one twice")
        valid = [name for name in Experiment().run_config() if name not in ELSEWHERE]
        for table, given in (("run", self.run), ("targets", self.targets or {})):
            for key, value in given.items():
                if key in ELSEWHERE:
                    raise ValueError(f"[{table}] {key}: {ELSEWHERE[key]}")
                if key not in valid:
                    raise ValueError(f"[{table}] there is no setting '{key}'; {spec.suggest(key, valid)}")
                _named(f"[{table}] {key}", values_of, value)
        _named("grant", parse_grants, [self.grant])
        for text in _named("attacks", values_of, self.attacks) if self.attacks else []:
            _named(f"attacks: {text!r}", adversary.build, text)
        if self.targets is not None and not self.attacks:
            raise ValueError("[targets] is what attacks work on, but there are none: add attacks = [...], or leave it out")
        return self

    @property
    def asked(self) -> list[str]:
        """Every attack that is asked for."""
        return [str(text) for text in values_of(self.attacks)] if self.attacks else []

    @property
    def grants(self) -> tuple[str, ...]:
        """What every attacker is told."""
        return parse_grants([self.grant])

    def toml(self) -> str:
        """The sweep as a file."""
        above = {name: getattr(self, name) for name in type(self).model_fields if name not in ("run", "targets")}
        lines = [f"{name.replace('_', '-')} = {_written(value)}" for name, value in above.items()]
        for table, given in (("run", self.run), ("targets", self.targets)):
            if given is not None:
                lines += [f"[{table}]", *(f"{key} = {_written(value)}" for key, value in given.items())]
        return "\n".join(lines) + "\n"


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
            place = ".".join(str(part) for part in detail["loc"] if part not in ("int", "float", "str", "bool"))
            message = detail["msg"].removeprefix("Value error, ")
            problems.append(f"{source}: {place} = {detail['input']!r}: {message}" if place else f"{source}: {message}")
        raise ConfigError("\n".join(dict.fromkeys(problems))) from None


def read_sweep(path: Path) -> tuple[Sweep, str]:
    """(the sweep in a file, the text of the file)."""
    given = read_toml(path)
    return sweep_of(given, str(path)), path.read_text(encoding="utf-8")
