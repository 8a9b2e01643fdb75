"""A client's own state folder: what its defense remembers and which rounds it has answered, so that a restart forgets neither.

<state>/<run>/latest.safetensors          as of the last answer; a node that restarts in the midst of a run goes on with it
<state>/<run>/round-000120.safetensors    as of a round that the server kept; a resumed run goes on with it
<state>/<run>/weights.txt                 a digest of the weights that came in each round, to compare with other clients'
<state>/<run>/losses.txt                  the losses of the last rounds, for the client's guard

<run> is a hash of the run's settings: a resumed run has another id, but the same settings. A folder inside the run directory
(one machine, one owner) shares the kept rounds with the other engines, in the run directory's own place for them.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fl_app.client.policy import OwnConfig, Refused
from fl_app.core.errors import said
from fl_app.core.local import Tensors
from fl_app.experiment.config import MAY_CHANGE, Experiment
from fl_app.store.files import RunError, checksum, load_tensors, save_tensors
from fl_app.store.runs import RunDir

log = logging.getLogger("thorns")
VERSION, LATEST, WEIGHTS, LOSSES = "1", "latest.safetensors", "weights.txt", "losses.txt"
KEPT_ROUNDS = 2
"""The last two: a server that ends before its own checkpoint is written resumes from the one before."""
KEPT_RUNS = 32
HARMED = "this client's kept state cannot be used; its log says why"


class Kept(NamedTuple):
    """What a client keeps of a run, as of its answer to a round."""

    run_id: int
    """Flower's id of the run in which it was written."""
    server_round: int
    answered: int
    """The last round that counts as answered; 0 for a client that does not count."""
    memory: Tensors


def default_folder(name: str) -> Path:
    """Where a client keeps its state unless it is told otherwise."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "thorns" / "clients" / name


def check_private(folder: Path) -> None:
    """Raise if a state folder is no folder, or open to others; one that is not there is made when it is needed."""
    if folder.exists() and (not folder.is_dir() or folder.stat().st_mode & 0o077):
        raise ValueError(f"{folder} is not a private folder: chmod 700 it, or choose another one with --state")


class ClientState:
    """The state of one client in one run."""

    def __init__(self, root: Path, experiment: Experiment, own: OwnConfig | None, client: int, run_id: int) -> None:
        self.run_id = run_id
        self.folder = root / _identity(experiment, own, client, run_id)
        self.latest = self.folder / LATEST
        run_dir = Path(experiment.run_dir)
        inside = bool(experiment.run_dir) and run_dir in root.parents
        self._shared = (RunDir(run_dir), f"client-{client:03d}.safetensors") if inside else None

    def begin(self, resumed_from: int) -> Kept | None:
        """What to go on with: of this very run, or of the round that it is resumed from; None at the start of a run."""
        for torn in self.folder.glob(".*"):
            torn.unlink(missing_ok=True)  # of a write that was killed
        found = self._read(self.latest)
        if found is not None and found.run_id == self.run_id:
            log.info("this client goes on with what it kept of round %d", found.server_round)
            return found
        if not resumed_from:
            shutil.rmtree(self.folder, ignore_errors=True)  # of a run with the same settings that was begun anew
            return None
        found = self._read(self._at(resumed_from)) or found
        if found is None:
            log.info("this client kept nothing of the run that goes on after round %d", resumed_from)
            return None
        if found.server_round > resumed_from:
            log.warning(
                "the run goes on after round %d, but what is kept is of round %d: it is used, and results may differ from an "
                "unbroken run",
                resumed_from,
                found.server_round,
            )
        log.info("this client goes on with what it kept of round %d", min(found.server_round, resumed_from))
        found = Kept(self.run_id, min(found.server_round, resumed_from), min(found.answered, resumed_from), found.memory)
        self.write(found)
        return found

    def write(self, kept: Kept) -> None:
        """Keep the state after an answer, before the answer is sent."""
        notes = {"version": VERSION, "round": kept.server_round, "run": kept.run_id, "answered": kept.answered}
        try:
            self._make_folder()
            save_tensors(self.latest, kept.memory, {key: str(value) for key, value in notes.items()}, durable=True)
        except (OSError, RunError) as error:
            # Unkept, the answer would be forgotten at the next restart: then it must not be given.
            log.error("this client's state cannot be kept in %s: %s", self.folder, error)
            raise Refused("this client cannot keep its state; its log says why") from None

    def _make_folder(self) -> None:
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True, mode=0o700)
            self.folder.parent.chmod(0o700)
            _drop_oldest(self.folder.parent)

    def note_weights(self, server_round: int, params: Tensors) -> None:
        """Write down which weights came, and show it."""
        digest = checksum(params)
        log.info("round %d: the weights are %s", server_round, digest[:16])
        self._note(WEIGHTS, f"{server_round} {digest}\n", "a")

    def note_losses(self, losses: Sequence[float]) -> None:
        """Write down what the guard compares the next loss with."""
        self._note(LOSSES, " ".join(map(repr, losses)), "w")

    def losses(self) -> list[float]:
        """What was written down; nothing if it cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            return [float(one) for one in (self.folder / LOSSES).read_text(encoding="ascii").split()]
        return []

    def _note(self, name: str, text: str, mode: str) -> None:
        """Notes protect nothing by themselves, so without room for them the client goes on."""
        try:
            self._make_folder()
            with (self.folder / name).open(mode, encoding="ascii") as out:
                out.write(text)
        except OSError as error:
            log.warning("%s cannot be written: %s", self.folder / name, said(error))

    def keep(self, server_round: int) -> None:
        """Keep the latest state as that of a round, to resume from; nothing if there is none."""
        if not self.latest.exists():
            return
        place = self._at(server_round)
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_name(f".{place.name}.{os.getpid()}")
        try:
            os.link(self.latest, temporary)  # the file is never changed, only replaced
        except OSError:
            shutil.copyfile(self.latest, temporary)
        temporary.replace(place)
        for old in sorted(self.folder.glob("round-*"))[:-KEPT_ROUNDS]:
            old.unlink()

    def _at(self, server_round: int) -> Path:
        if self._shared is not None:
            run, name = self._shared
            return run.client_folder(server_round) / name
        return self.folder / f"round-{server_round:06d}.safetensors"

    def _read(self, path: Path) -> Kept | None:
        """A kept state; a file that is damaged or not ours is refused: without its memory a defense may protect less."""
        if not path.exists():
            return None
        try:
            memory, notes = load_tensors(path)
            if notes.get("version", VERSION) != VERSION:
                raise RunError(f"{path} is of version {notes['version']}, this program reads {VERSION}")
            return Kept(int(notes.get("run", 0)), int(notes["round"]), int(notes.get("answered", 0)), memory)
        except RunError as error:
            reason = str(error)
        except (KeyError, ValueError):
            reason = f"{path} is not a client's state"
        log.error("%s; this client does not answer until it is removed, which makes its defense begin anew", reason)
        raise Refused(HARMED)


def _identity(experiment: Experiment, own: OwnConfig | None, client: int, run_id: int) -> str:
    """The same for a run and for what resumes it; without a run directory nothing can be resumed, and the id decides."""
    settings = {key: value for key, value in experiment.run_config().items() if key not in MAY_CHANGE}
    mine = [own.defense, own.dataset] if own else []
    text = json.dumps([settings, client, mine, None if experiment.run_dir else run_id], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _drop_oldest(root: Path) -> None:
    """Forget the runs that were written to longest ago."""
    runs = []
    for path in root.glob(f"*/{LATEST}"):
        with contextlib.suppress(OSError):
            runs.append((path.stat().st_mtime, path.parent))
    for _, folder in sorted(runs)[:-KEPT_RUNS]:
        shutil.rmtree(folder, ignore_errors=True)
