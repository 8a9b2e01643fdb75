"""The run directory: what was run, how it went, and how to go on.

environment.json         versions, machine and command it was started with
experiment.toml          every setting; `thorns run --config` takes it
metrics.jsonl            one JSON object per line, as the run goes
checkpoint.safetensors   weights and optimiser after the last kept round
clients/round-000120/    what the defenses of the clients remember, as of that round
"""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from fl_app.core.local import Tensors
from fl_app.store.files import RunError, load_tensors, make_folder, save_tensors, write_atomic
from fl_app.store.lines import LineFile, read_lines

log = logging.getLogger("thorns")
SETTINGS = "experiment.toml"
SLACK = 65536
"""Bytes of a checkpoint beside its tensors, at most."""


class Checkpoint(NamedTuple):
    """The server after a round."""

    server_round: int
    weights: Tensors
    optimizer: Tensors


class RunDir:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings_path = path / SETTINGS
        self.metrics_path = path / "metrics.jsonl"
        self.checkpoint_path = path / "checkpoint.safetensors"
        self.reserve_path = path / ".reserve"
        self._lines = LineFile(self.metrics_path)
        self._waiting: list[dict[str, Any]] = []

    @classmethod
    def create(cls, path: Path, settings: str, environment: dict[str, str]) -> "RunDir":
        """Make a new run; an existing one is never overwritten."""
        cls.refuse_present(path)
        make_folder(path)
        run = cls(path)
        write_atomic(path / "environment.json", json.dumps(environment, indent=1))
        run.keep(settings)
        return run

    @staticmethod
    def refuse_present(path: Path) -> None:
        """RunError if there is a run already."""
        if (path / SETTINGS).exists():
            raise RunError(f"{path} already holds a run: choose another run-dir, or go on with `thorns run --resume {path}`")

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        """An existing run."""
        if not (path / SETTINGS).is_file():
            sweep = ", as it is a sweep: name one of the folders in its runs/" if (path / "plan.json").exists() else ""
            raise RunError(f"{path} is not a run directory: it has no {SETTINGS}{sweep}")
        return cls(path)

    def keep(self, settings: str) -> None:
        """Keep the settings, as TOML; a resumed run may have more rounds than it was started with."""
        write_atomic(self.settings_path, settings)

    def record(self, line: dict[str, Any]) -> None:
        """Append a line of metrics; RunError if it cannot be written, and then it is written with the next one that can."""
        self._waiting.append(line)
        self._lines.append(*self._waiting)
        self._waiting.clear()

    def metrics(self) -> list[dict[str, Any]]:
        """The lines so far; one that was cut off by a crash is left out."""
        return read_lines(self.metrics_path)

    def reserve(self, size: int) -> None:
        """Hold this many bytes for the next checkpoint, so that captures which fill the disk leave room for it."""
        if not hasattr(os, "posix_fallocate"):
            return
        try:
            with self.reserve_path.open("wb") as out:
                os.posix_fallocate(out.fileno(), 0, max(1, size))
        except OSError as error:
            log.debug("no room is reserved for checkpoints: %s", error)
            self.release()

    def release(self) -> None:
        """Give the reserved room back."""
        self.reserve_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of what a run holds while it is trained."""
        self.release()
        self._lines.close()

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep the server's state in the reserved room, then drop the clients' older ones; RunError leaves the old state."""
        tensors = {f"weights/{name}": value for name, value in checkpoint.weights.items()}
        tensors |= {f"optimizer/{name}": value for name, value in checkpoint.optimizer.items()}
        self.release()
        try:
            save_tensors(self.checkpoint_path, tensors, {"round": str(checkpoint.server_round)})
        finally:
            self.reserve(SLACK + sum(value.nbytes for value in tensors.values()))
        for old in (self.path / "clients").glob("round-*"):
            if old.name != self.client_folder(checkpoint.server_round).name:
                shutil.rmtree(old, ignore_errors=True)

    def load_checkpoint(self) -> Checkpoint | None:
        """The last kept state of the server, if there is one."""
        if not self.checkpoint_path.exists():
            return None
        tensors, notes = load_tensors(self.checkpoint_path)
        groups: dict[str, Tensors] = {"weights": {}, "optimizer": {}}
        for name, value in tensors.items():
            group, _, key = name.partition("/")
            groups.setdefault(group, {})[key] = value
        try:
            return Checkpoint(int(notes["round"]), groups["weights"], groups["optimizer"])
        except (KeyError, ValueError):
            raise RunError(f"{self.checkpoint_path} is not a checkpoint of this program") from None

    def rewind(self, server_round: int) -> None:
        """Forget metrics after a round: they will be measured again."""
        kept = [line for line in self.metrics() if line.get("round", 0) <= server_round]
        self._lines.close()
        write_atomic(self.metrics_path, "".join(json.dumps(line) + "\n" for line in kept))

    def client_folder(self, server_round: int) -> Path:
        """Where clients keep what their defenses remember, as of a round."""
        return self.path / "clients" / f"round-{server_round:06d}"

    def save_memory(self, server_round: int, client: int, state: Tensors) -> None:
        """Keep one client's memory."""
        folder = self.client_folder(server_round)
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(folder / f"client-{client:03d}.safetensors", state, {"round": str(server_round)})

    def load_memory(self, server_round: int, client: int) -> Tensors:
        """One client's memory as of a round; empty if it had none."""
        path = self.client_folder(server_round) / f"client-{client:03d}.safetensors"
        return load_tensors(path)[0] if path.exists() else {}
