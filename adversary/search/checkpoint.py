"""The state of a search, on disk every minute: one that was broken off goes on where it was, to the same answer."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch

from adversary.search.optimizers import Steps
from fl_app.core.local import Tensors
from fl_app.store.files import RunError, checksum, load_tensors, save_tensors

log = logging.getLogger("thorns")
SECONDS = 60.0
SLOWEST = 20
"""So many times as long as writing a state takes, at least, until it is written again."""
_folder: ContextVar[Path | None] = ContextVar("_folder", default=None)


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Keep the states of all searches inside in a folder, which the caller removes once their answers are safe."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


class Attempt:
    """How far one attempt of a search is: all that its next iteration depends on, variables as (targets, seeds, ...)."""

    def __init__(self, variables: Tensors, steps: Steps, streams: Sequence[torch.Generator]) -> None:
        self.iteration, self.over = 0, False
        self.variables, self.steps, self.streams = variables, steps, streams
        self.best = {name: value.clone() for name, value in variables.items()}
        first = next(iter(variables.values()))
        self.best_loss = torch.full(first.shape[:2], torch.inf, device=first.device)
        self.distance = torch.full_like(self.best_loss, torch.inf)
        """What the best leave unexplained, priors apart."""

    def state(self) -> Tensors:
        """The attempt by name; one that is over takes no more steps."""
        where = torch.tensor([self.iteration, self.over])
        streams = {str(i): stream.get_state() for i, stream in enumerate(self.streams)}
        parts = {"variables": self.variables, "best": self.best, "streams": streams}
        if not self.over:
            parts["steps"] = self.steps.state()
        named = {f"{part}/{name}": value for part, of_part in parts.items() for name, value in of_part.items()}
        return {"where": where, "best_loss": self.best_loss, "distance": self.distance, **named}

    def restore(self, state: Tensors) -> None:
        """Go on from a state."""

        def part(prefix: str) -> Tensors:
            found = {name: value for name, value in state.items() if name.startswith(prefix)}
            return {name.removeprefix(prefix): value.to(self.best_loss.device) for name, value in found.items()}

        self.iteration, self.over = int(state["where"][0]), bool(state["where"][1])
        self.best_loss = state["best_loss"].to(self.best_loss.device)
        self.distance = state.get("distance", state["best_loss"]).to(self.best_loss.device)  # older files have no such name
        # In the order in which they were drawn, which is that of L-BFGS's vector; a file has an order of its own.
        self.variables, self.best = ({name: found[name] for name in self.best} for found in (part("variables/"), part("best/")))
        self.steps.restore(part("steps/"))
        for i, stream in enumerate(self.streams):
            stream.set_state(state[f"streams/{i}"])


class Checkpoint:
    """The file of an attempt, named by all that its answer depends on; nothing at all outside of `kept_in`."""

    def __init__(self, made_of: str, tensors: Tensors) -> None:
        folder = _folder.get()
        self._path = folder / f"{checksum(tensors, made_of)[:32]}.safetensors" if folder else None
        self._next = time.monotonic() + SECONDS

    def load(self, attempt: Attempt) -> None:
        """Move an attempt that has just started to where it was left; a damaged file is named, and the start stays."""
        if self._path is None or not self._path.exists():
            return
        try:
            state, notes = load_tensors(self._path)
            if notes.get("checksum") != checksum(state):
                raise RunError(f"{self._path} cannot be read: its checksum is wrong")
        except RunError as error:
            log.warning("%s; the search starts anew", error)
            return
        attempt.restore({name: value.clone() for name, value in state.items()})

    def at(self, attempt: Attempt) -> None:
        """Keep an attempt between two iterations, if it is time to."""
        if time.monotonic() >= self._next:
            self.keep(attempt)

    def keep(self, attempt: Attempt) -> None:
        """Keep an attempt; a file that cannot be written costs the checkpoint, not the search."""
        if self._path is None:
            return
        began, state = time.monotonic(), attempt.state()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            save_tensors(self._path, state, {"checksum": checksum(state)})
        except (RunError, OSError) as error:
            log.warning("%s; the search goes on, but is lost if it is broken off", error)
        now = time.monotonic()
        self._next = now + max(SECONDS, SLOWEST * (now - began))
