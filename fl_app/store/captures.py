"""Captures on disk: what the server saw, for attacks that come later.

captures/round-0001/model.safetensors       the weights that were sent in that round, by their plain names
captures/round-0001/client-03.safetensors   one client's update ("update/<name>") and what was granted beside it
captures/round-0001/weights-03.safetensors  the weights that this client was sent, where they are not those of the round
captures/round-0001/aggregate.safetensors   the same of all clients together, if the server sees no more

Every file is safetensors with a versioned header and a checksum; an update names the checksum of its weights.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fl_app.core.errors import said
from fl_app.core.local import Tensors
from fl_app.core.observation import Key, Observation
from fl_app.store import sealed
from fl_app.store.capture_format import Model, encode, model_notes, read_model, read_observation
from fl_app.store.sealed import CaptureError

MODEL = "model.safetensors"
ROUND_NAME = re.compile(r"round-([0-9]{4,9})")
CLIENT_NAME = re.compile(r"client-([0-9]{2,9})\.safetensors|aggregate\.safetensors")

__all__ = ["CaptureError", "Captures", "Damaged"]


class Damaged(NamedTuple):
    """A file that was skipped, and why."""

    path: Path
    reason: str


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Give every error about a file its name."""
    try:
        yield
    except CaptureError as error:
        raise CaptureError(error.reason, path) from error
    except OSError as error:
        raise CaptureError(f"it cannot be written: {said(error)}", path) from error


class Captures:
    """The captures in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[Path, str] = {}
        self._last: tuple[Path, Tensors] | None = None
        self._read: tuple[Path, int, Model] | None = None

    def path_of(self, server_round: int, client: int) -> Path:
        """Where the update of a client (-1: of all together) in a round is kept."""
        name = "aggregate.safetensors" if client == -1 else f"client-{client:02d}.safetensors"
        return self._round(server_round) / name

    def write(self, observation: Observation) -> Path:
        """Keep an observation, and the weights of its round if they are not there yet; raises CaptureError."""
        server_round, client = observation.server_round, observation.client
        weights = self._write_weights(server_round, client, observation.params)
        path = self.path_of(server_round, client)
        with _naming(path):
            parts, _ = sealed.seal(*encode(observation, self._written[weights]))
            sealed.write_atomic(path, parts)
        return path

    def _write_weights(self, server_round: int, client: int, params: Tensors) -> Path:
        """Keep the weights that a client was sent: once for a round, or beside it where they are a client's own."""
        shared = self._round(server_round) / MODEL
        if self._last is not None and self._last[0] == shared and self._last[1] is params:
            self._forget_own(server_round, client)
            return shared
        with _naming(shared):
            parts, checksum = sealed.seal(params, model_notes(server_round))
        path = shared if self._written.get(shared, checksum) == checksum else self.weights_of(server_round, client)
        with _naming(path):
            if self._written.get(path) != checksum:
                path.parent.mkdir(parents=True, exist_ok=True)
                sealed.write_atomic(path, parts)
        self._written[path] = checksum
        if path == shared:
            self._last = shared, params
            self._forget_own(server_round, client)
        return path

    def _forget_own(self, server_round: int, client: int) -> None:
        """Delete weights of a client's own that a run which was broken off may have left."""
        self.weights_of(server_round, client).unlink(missing_ok=True)

    def weights_of(self, server_round: int, client: int) -> Path:
        """Where the weights of one client are kept if they are not those of its round."""
        return self._round(server_round) / f"weights-{client:02d}.safetensors"

    def rounds(self) -> list[int]:
        """The rounds that have a folder, in order."""
        if not self.folder.is_dir():
            return []
        names = (ROUND_NAME.fullmatch(path.name) for path in self.folder.iterdir() if path.is_dir())
        numbers = {int(name[1]) for name in names if name and self._round(int(name[1])).name == name[0]}
        return sorted(numbers)

    def paths(self, rounds: Collection[int] | None = None, clients: Collection[int] | None = None) -> list[Path]:
        """The files of updates by round and client (-1: an aggregate), of these rounds and clients or of all."""
        found = []
        for server_round in self.rounds():
            if rounds is None or server_round in rounds:
                names = (CLIENT_NAME.fullmatch(path.name) for path in self._round(server_round).iterdir())
                numbered = ((int(name[1] or -1), name[0]) for name in names if name)
                every = sorted((number, self.path_of(server_round, number), name) for number, name in numbered)
                found += [path for number, path, name in every if path.name == name and (clients is None or number in clients)]
        return found

    def targets(self, rounds: Collection[int] | None = None, clients: Collection[int] | None = None) -> list[Key]:
        """The (round, client) of each update, in the same order."""
        return [(_round_of(path.parent), _client_of(path)) for path in self.paths(rounds, clients)]

    def read(self, path: Path) -> Observation:
        """Read one update with its weights; raises CaptureError with the file's name and the reason.

        The weights of a round are read once: the observations of a round share them.
        """
        with _naming(path):
            own = self.weights_of(_round_of(path.parent), _client_of(path))
            return _observation(path, _model(own) if own.exists() else self._shared(path.parent / MODEL))

    def _shared(self, path: Path) -> Model:
        """The weights of a round, kept until those of another are asked for or the file changes."""
        stamp = path.stat().st_mtime_ns if path.exists() else 0
        if self._read is None or self._read[:2] != (path, stamp):
            self._read = path, stamp, _model(path)
        return self._read[2]

    def read_all(
        self, rounds: Collection[int] | None = None, clients: Collection[int] | None = None
    ) -> tuple[list[Observation], list[Damaged]]:
        """(what can be read, what cannot and why); the observations of a round share its weights."""
        seen: list[Observation] = []
        damaged: list[Damaged] = []
        for path in self.paths(rounds, clients):
            try:
                seen.append(self.read(path))
            except CaptureError as error:
                damaged.append(Damaged(path, error.reason))
        return seen, damaged

    def _round(self, server_round: int) -> Path:
        return self.folder / f"round-{server_round:04d}"


def _round_of(folder: Path) -> int:
    name = ROUND_NAME.fullmatch(folder.name)
    if not name:
        raise CaptureError("its folder is not named like a round")
    return int(name[1])


def _client_of(path: Path) -> int:
    name = CLIENT_NAME.fullmatch(path.name)
    if not name:
        raise CaptureError("it is not named like a capture")
    return int(name[1] or -1)


def _model(path: Path) -> Model:
    """The weights in a file."""
    try:
        return read_model(path, _round_of(path.parent))
    except CaptureError as error:
        raise CaptureError(f"the weights of its round cannot be used: {path.name}: {error.reason}") from error


def _observation(path: Path, model: Model) -> Observation:
    return read_observation(path, model, _round_of(path.parent), _client_of(path))
