"""Captures on disk: what the server saw, for attacks that come later.

captures/round-0001/model.safetensors       the weights that were sent in that round, by their plain names
captures/round-0001/client-03.safetensors   one client's update ("update/<name>") and what was granted beside it
captures/round-0001/aggregate.safetensors   the same of all clients together, if the server sees no more

Every file is safetensors with a versioned header and a checksum; an update names the checksum of its weights.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fl_app.core.local import Tensors
from fl_app.core.observation import Observation
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
        raise CaptureError(f"it cannot be written: {error.strerror or error}", path) from error


class Captures:
    """The captures in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[int, str] = {}
        self._last: tuple[int, Tensors] | None = None

    def path_of(self, server_round: int, client: int) -> Path:
        """Where the update of a client (-1: of all together) in a round is kept."""
        name = "aggregate.safetensors" if client == -1 else f"client-{client:02d}.safetensors"
        return self._round(server_round) / name

    def write(self, observation: Observation) -> Path:
        """Keep an observation, and the weights of its round if they are not there yet; raises CaptureError."""
        server_round, params = observation.server_round, observation.params
        if self._last is None or self._last[0] != server_round or self._last[1] is not params:
            self.write_model(server_round, params)
        path = self.path_of(server_round, observation.client)
        with _naming(path):
            parts, _ = sealed.seal(*encode(observation, self._written[server_round]))
            sealed.write_atomic(path, parts)
        return path

    def write_model(self, server_round: int, params: Tensors) -> Path:
        """Keep the weights of a round, which are the same for all of its clients; raises CaptureError."""
        path = self._round(server_round) / MODEL
        with _naming(path):
            parts, checksum = sealed.seal(params, model_notes(server_round))
            if self._written.get(server_round, checksum) != checksum:
                raise CaptureError("it already holds other weights of this run")
            if server_round not in self._written:
                path.parent.mkdir(parents=True, exist_ok=True)
                sealed.write_atomic(path, parts)
        self._written[server_round], self._last = checksum, (server_round, params)
        return path

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

    def read(self, path: Path) -> Observation:
        """Read one update with the weights of its round; raises CaptureError with the file's name and the reason."""
        with _naming(path):
            return _observation(path, _model(path.parent))

    def read_all(
        self, rounds: Collection[int] | None = None, clients: Collection[int] | None = None
    ) -> tuple[list[Observation], list[Damaged]]:
        """(what can be read, what cannot and why); the observations of a round share its weights."""
        seen: list[Observation] = []
        damaged: list[Damaged] = []
        folder: Path | None = None
        model: Model | CaptureError = CaptureError("")
        for path in self.paths(rounds, clients):
            try:
                if path.parent != folder:
                    folder = path.parent
                    try:
                        model = _model(folder)
                    except CaptureError as error:
                        model = error
                if isinstance(model, CaptureError):
                    raise model
                seen.append(_observation(path, model))
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


def _model(folder: Path) -> Model:
    """The weights of the round in a folder."""
    server_round = _round_of(folder)
    try:
        return read_model(folder / MODEL, server_round)
    except CaptureError as error:
        raise CaptureError(f"the weights of its round cannot be used: {MODEL}: {error.reason}") from error


def _observation(path: Path, model: Model) -> Observation:
    name = CLIENT_NAME.fullmatch(path.name)
    if not name:
        raise CaptureError("it is not named like a capture")
    return read_observation(path, model, _round_of(path.parent), int(name[1] or -1))
