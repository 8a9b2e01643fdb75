"""Reconstructions on disk: what an attack answered about a target, beside what it was told."""

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fl_app.core.observation import Key
from fl_app.store.files import RunError, load_tensors, save_tensors


class Reconstruction(NamedTuple):
    """x (examples, *shape), y int64 (examples,), the attack's own loss, and notes for people."""

    x: Tensor
    y: Tensor
    loss: float
    notes: dict[str, str]


def guess_path(out: Path, key: Key) -> Path:
    """Where the reconstruction of a target is kept."""
    name = "aggregate" if key[1] == -1 else f"client-{key[1]:02d}"
    return out / f"round-{key[0]:04d}" / f"{name}.safetensors"


def key_of(path: Path) -> Key:
    """The target that a file of captures or reconstructions is about."""
    client = -1 if path.stem == "aggregate" else int(path.stem.removeprefix("client-"))
    return int(path.parent.name.removeprefix("round-")), client


def save_guess(path: Path, x: Tensor, y: Tensor, loss: Tensor, notes: dict[str, str]) -> None:
    """Write one reconstruction atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path, {"x": x.float(), "y": y, "loss": loss.reshape(1)}, notes)


def load_guess(path: Path) -> Reconstruction:
    """Read one reconstruction; RunError if the file is damaged."""
    tensors, notes = load_tensors(path)
    try:
        return Reconstruction(tensors["x"], tensors["y"], tensors["loss"].item(), notes)
    except (KeyError, RuntimeError) as error:
        raise RunError(f"{path} cannot be read: it is not a reconstruction ({error})") from None
