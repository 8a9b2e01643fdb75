"""The score of one target: a line of scores.jsonl."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self, get_args

Row = Mapping[str, float | None]
"""Metric name -> its mean over a target's examples, or None where the metric is unavailable."""
Status = Literal["done", "failed"]
KEYS = (
    "round",
    "client",
    "status",
    "reason",
    "loss",
    "attack",
    "ledger",
    "visibility",
    "seconds",
    "unavailable",
    "floor",
    "by_truth",
    "control",
)
"""What a line holds beside metrics; no metric may have such a name."""


class ByTruth(NamedTuple):
    """The worst that any member of an attack came to by one metric, the chosen answer included, and who it was."""

    value: float
    member: str


@dataclass(frozen=True, kw_only=True)
class TargetScore:
    """What an attack came to on one target: a client's round, or with client -1 the aggregate of a round."""

    round: int
    client: int
    status: Status
    """A failed target has a reason and no values, and stays in every count."""
    reason: str = ""
    values: Row = field(default_factory=dict)
    """Means over the target's examples; empty where the attack answered with something else than a reconstruction."""
    by_truth: Mapping[str, ByTruth] = field(default_factory=dict)
    """Metric name -> the worst member, chosen by the truth, where an attack has several; `values` are what it answered."""
    control: Row = field(default_factory=dict)
    """What the same attack reached on an update that says nothing, where all that it draws looks like an example."""
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Metric name -> why it has no value."""
    loss: float | None = None
    """The attack's own."""
    attack: str = ""
    """As it was run."""
    ledger: str = ""
    """What the attacker was told beyond the protocol."""
    visibility: str = ""
    """What the server saw: 'individual' updates or the 'aggregate'."""
    seconds: float | None = None

    @property
    def done(self) -> bool:
        """Whether the attack answered."""
        return self.status == "done"

    @property
    def key(self) -> tuple[int, int]:
        """(round, client)."""
        return self.round, self.client

    @property
    def where(self) -> str:
        """The target in words."""
        return f"round {self.round}, " + ("aggregate" if self.client == -1 else f"client {self.client}")

    @property
    def at_worst(self) -> Self:
        """The same, as if the attack had answered with its worst member by each metric."""
        return replace(self, values={**self.values, **{key: one.value for key, one in self.by_truth.items()}})

    def to_dict(self) -> dict[str, Any]:
        """One flat line: the metrics stand beside the other keys."""
        line: dict[str, Any] = {"round": self.round, "client": self.client, "status": self.status}
        if not self.done:
            return line | {"reason": self.reason}
        told = {"loss": self.loss, "attack": self.attack, "ledger": self.ledger, "visibility": self.visibility}
        found = {**line, **self.values, **told, "seconds": self.seconds, "unavailable": dict(self.unavailable)}
        worst = {key: one._asdict() for key, one in self.by_truth.items()}
        found |= {"control": dict(self.control)} if self.control else {}
        return found | {"by_truth": worst} if worst else found

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Self:
        """The opposite of `to_dict`; ValueError names what is missing or has a wrong type."""
        for key in ("round", "client"):
            _check(key, line.get(key), (int,))
        if line.get("status") not in get_args(Status):
            raise ValueError(f"status must be {' or '.join(get_args(Status))}, not {str(line.get('status'))[:80]!r}")
        unavailable = line.get("unavailable") or {}
        _check("unavailable", unavailable, (dict,))
        seconds = line.get("seconds")
        if seconds is not None:
            _check("seconds", seconds, (int, float, str))  # text in older files
        return cls(
            round=line["round"],
            client=line["client"],
            status=line["status"],
            reason=str(line.get("reason", "")),
            values=values_of(line),
            by_truth=_by_truth(line.get("by_truth") or {}),
            control=_control(line.get("control") or {}),
            unavailable={str(key): str(why) for key, why in unavailable.items()},
            loss=_number("loss", line.get("loss")),
            attack=str(line.get("attack", "")),
            ledger=str(line.get("ledger", "")),
            visibility=str(line.get("visibility", "")),
            seconds=None if seconds is None else float(seconds),
        )


def values_of(line: Mapping[str, Any]) -> Row:
    """The metrics of a line of scores.jsonl or floors.jsonl; ValueError if one is no number."""
    return {key: _number(key, value) for key, value in line.items() if key not in KEYS}


def _control(found: Any) -> Row:
    _check("control", found, (dict,))
    return {str(key): _number(f"control {key}", value) for key, value in found.items()}


def _by_truth(found: Any) -> dict[str, ByTruth]:
    _check("by_truth", found, (dict,))
    worst = {}
    for key, one in found.items():
        _check(f"by_truth {key}", one, (dict,))
        value = _number(f"by_truth {key}", one.get("value"))
        _check(f"by_truth {key} member", one.get("member"), (str,))
        if value is None:
            raise ValueError(f"by_truth {key} has no value")
        worst[str(key)] = ByTruth(value, one["member"])
    return worst


def lines_of(scores: Iterable[TargetScore]) -> str:
    """The text of scores.jsonl."""
    return "".join(json.dumps(one.to_dict()) + "\n" for one in scores)


def _number(key: str, value: Any) -> float | None:
    if value is not None:
        _check(key, value, (int, float))
    return None if value is None else float(value)


def _check(key: str, value: Any, kinds: tuple[type, ...]) -> None:
    if type(value) not in kinds:  # not isinstance: true and false are no numbers here
        raise ValueError(f"{key} must be {' or '.join(kind.__name__ for kind in kinds)}, not {str(value)[:80]!r}")
