"""What the files of a capture hold: an Observation as tensors and notes, and back with every claim checked."""

import json
import re
from pathlib import Path
from typing import NamedTuple, cast

import torch

from fl_app.core.local import MOST_EXAMPLES, RULE_NAMES, LocalRule, Tensors, finite
from fl_app.core.observation import Knowledge, Observation, Visibility
from fl_app.store import sealed
from fl_app.store.sealed import CaptureError, Sealed

VERSION = "3"
MODEL_BYTES = 16 * 2**30
EXTRA_BYTES = 64 * 2**20
"""How much larger than its model the file of an update may be: the header and what was granted."""
RULE_CHARACTERS = 1000
ADDED = {"local-momentum": 0.0, "local-weight-decay": 0.0, "local-shuffle": False}
"""What rules of older captures do not name, and had."""
CHOSEN = ("weights", "architecture")
"""What a malicious server may have made up."""
NUMBER = re.compile(r"-?[0-9]{1,20}")


class Model(NamedTuple):
    """The weights of a round and the checksum of their file."""

    params: Tensors
    checksum: str


def model_notes(server_round: int) -> dict[str, str]:
    """The header of the weights of a round."""
    return {"thorns": "model", "version": VERSION, "server_round": str(server_round)}


def encode(seen: Observation, model: str) -> tuple[Tensors, dict[str, str]]:
    """(tensors, header) of an observation on the weights with the checksum `model`."""
    check(seen)
    tensors = {f"update/{name}": seen.update[name] for name in seen.params}
    if seen.knowledge.labels is not None:
        tensors["knowledge/labels"] = seen.knowledge.labels
    tensors |= {f"knowledge/statistics/{name}": value for name, value in seen.knowledge.statistics.items()}
    tensors |= {f"sent/{client}/{name}": value for client, own in seen.sent.items() for name, value in own.items()}
    notes: dict[str, object] = {
        "thorns": "capture",
        "version": VERSION,
        "model": model,
        "rule": json.dumps(seen.rule.to_dict()),
        "num_examples": seen.num_examples,
        "node_id": seen.node_id,
        "client": seen.client,
        "server_round": seen.server_round,
        "visibility": seen.visibility,
    }
    if seen.knowledge.defense is not None:
        notes["defense"] = seen.knowledge.defense
    if seen.knowledge.repeats:
        notes["repeats"] = 1
    if seen.knowledge.public:
        notes["public"] = 1
    if seen.knowledge.chosen:
        notes["chosen"] = ",".join(seen.knowledge.chosen)
    return tensors, {key: str(value) for key, value in notes.items()}


def check(seen: Observation) -> None:
    """Refuse an observation that contradicts itself; whether values are finite is checked where they are copied."""
    if seen.update.keys() != seen.params.keys():
        differing = sorted(seen.update.keys() ^ seen.params.keys())
        raise CaptureError(f"its update has other names than the weights: {[name[:40] for name in differing[:3]]}")
    for name, like in seen.params.items():
        value = seen.update[name]
        if value.shape != like.shape or value.dtype != like.dtype:
            raise CaptureError(f"{name} is {tuple(value.shape)} of {value.dtype}, not {tuple(like.shape)} of {like.dtype}")
    if not 1 <= seen.num_examples <= MOST_EXAMPLES or not 1 <= seen.server_round <= MOST_EXAMPLES:
        raise CaptureError(f"it claims {seen.num_examples} examples in round {seen.server_round}")
    if seen.visibility not in ("individual", "aggregate") or (seen.client == -1) != (seen.visibility == "aggregate"):
        raise CaptureError(f"it claims the visibility {seen.visibility[:40]!r} and the client {seen.client}")
    if not -1 <= seen.client <= MOST_EXAMPLES:
        raise CaptureError(f"it claims the client {seen.client}")
    labels = seen.knowledge.labels
    if labels is not None and (labels.shape != (seen.num_examples,) or labels.dtype != torch.int64 or bool((labels < 0).any())):
        raise CaptureError(f"its labels are not {seen.num_examples} classes")
    if any(one not in CHOSEN for one in seen.knowledge.chosen):
        raise CaptureError(f"it claims that the server chose {str(seen.knowledge.chosen)[:80]}")
    _check_sent(seen)
    for name, value in seen.knowledge.statistics.items():
        if value.ndim != 2 or len(value) != 2 or not value.is_floating_point():
            raise CaptureError(f"its statistics of {name[:80]} are not a mean and a variance per channel")


def _check_sent(seen: Observation) -> None:
    """Weights of single clients belong to an aggregate, and differ from the others' in values alone."""
    if seen.sent and seen.visibility != "aggregate":
        raise CaptureError("it holds weights of several clients, but is no aggregate")
    for client, own in seen.sent.items():
        for name, value in own.items():
            like = seen.params.get(name)
            if like is None or value.shape != like.shape or value.dtype != like.dtype:
                raise CaptureError(f"the weights that it says client {client} was sent do not fit: {name[:80]}")


def read_model(path: Path, server_round: int) -> Model:
    """The weights of a round."""
    content = _read(path, "model", MODEL_BYTES)
    if _number(content.notes, "server_round") != server_round:
        raise CaptureError(f"it is not of round {server_round}")
    return Model(content.tensors, content.checksum)


def read_observation(path: Path, model: Model, server_round: int, client: int) -> Observation:
    """The update of a client in a round, on the weights of that round."""
    size = sum(value.numel() * value.element_size() for value in model.params.values())
    tensors, notes, _ = _read(path, "capture", size + EXTRA_BYTES)
    if notes.get("model") != model.checksum:
        raise CaptureError("it was made with other weights than those of its round")
    labels = tensors.pop("knowledge/labels", None)
    statistics = _taken(tensors, "knowledge/statistics/")
    update, sent = _taken(tensors, "update/"), _sent(_taken(tensors, "sent/"))
    if tensors:
        raise CaptureError(f"it holds {next(iter(tensors))[:80]!r}, which is neither an update nor knowledge")
    seen = Observation(
        params=model.params,
        update={name: update[name] for name in model.params} if update.keys() == model.params.keys() else update,
        rule=_rule(notes),
        num_examples=_number(notes, "num_examples"),
        server_round=_number(notes, "server_round"),
        node_id=_number(notes, "node_id"),
        client=_number(notes, "client"),
        visibility=cast(Visibility, notes.get("visibility", "")),
        sent=sent,
        knowledge=Knowledge(
            labels=labels,
            defense=notes.get("defense"),
            statistics=statistics,
            repeats="repeats" in notes,
            public="public" in notes,
            chosen=tuple(notes["chosen"].split(",")) if "chosen" in notes else (),
        ),
    )
    check(seen)
    if (seen.server_round, seen.client) != (server_round, client):
        raise CaptureError(f"it is of client {seen.client} in round {seen.server_round}, not what its name says")
    return seen


def _read(path: Path, what: str, most: int) -> Sealed:
    content = sealed.read(path, most)
    if content.notes.get("thorns") != what:
        raise CaptureError(f"it is not a {what} of this program")
    if content.notes.get("version") != VERSION:
        raise CaptureError(f"it has version {content.notes.get('version', '')[:40]!r}; this program reads {VERSION!r}")
    broken = [name for name, value in content.tensors.items() if not finite(value)]
    if broken:
        raise CaptureError(f"{broken[0][:80]} has values that are not finite")
    return content


def _taken(tensors: Tensors, prefix: str) -> Tensors:
    """Move the tensors with a prefix out."""
    names = [name for name in tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): tensors.pop(name) for name in names}


def _sent(tensors: Tensors) -> dict[int, Tensors]:
    """Tensors named "client/name", by client."""
    found: dict[int, Tensors] = {}
    for key, value in tensors.items():
        client, _, name = key.partition("/")
        if not re.fullmatch("[0-9]{1,9}", client):
            raise CaptureError(f"it holds weights of {client[:40]!r}, which is no client")
        found.setdefault(int(client), {})[name] = value
    return found


def _number(notes: dict[str, str], key: str) -> int:
    text = notes.get(key, "")
    if not NUMBER.fullmatch(text):
        raise CaptureError(f"its {key} is {text[:40]!r}, not a whole number")
    return int(text)


def _rule(notes: dict[str, str]) -> LocalRule:
    text = notes.get("rule", "")
    try:
        named = json.loads(text) if len(text) <= RULE_CHARACTERS else None
        if not isinstance(named, dict) or (ADDED | named).keys() != RULE_NAMES.keys():
            raise ValueError(f"{text[:40]!r} does not name {', '.join(RULE_NAMES)}")
        return LocalRule.from_dict(ADDED | named)
    except (ValueError, RecursionError) as error:
        raise CaptureError(f"its rule is not valid: {str(error)[:120]}") from None
