"""Reconstructions on disk: what an attack answered about a target, beside what it was told."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from fl_app.core.observation import Key
from fl_app.store.files import RunError, load_tensors, save_tensors

OTHERS = "others/"
CONTROL = "control/x"


class Reconstruction(NamedTuple):
    """x (examples, *shape), y int64 (examples,), the attack's own loss, and notes for people."""

    x: Tensor
    y: Tensor
    loss: float
    notes: dict[str, str]
    others: Mapping[str, tuple[Tensor, Tensor]] = MappingProxyType({})
    """What each member of the attack found, x and y by its name; empty if it has none."""
    control: Tensor | None = None
    """What the attack found in an update that says nothing, (examples, *shape); None if it needs no control."""


class CandidateScores(NamedTuple):
    """What an inference attack believes of each candidate, (candidates,), and notes for people."""

    scores: Tensor
    notes: dict[str, str]


def guess_path(out: Path, key: Key) -> Path:
    """Where the reconstruction of a target is kept."""
    name = "aggregate" if key[1] == -1 else f"client-{key[1]:02d}"
    return out / f"round-{key[0]:04d}" / f"{name}.safetensors"


def save_guess(
    path: Path,
    x: Tensor,
    y: Tensor,
    loss: Tensor,
    notes: dict[str, str],
    others: Mapping[str, tuple[Tensor, Tensor]] = MappingProxyType({}),
    control: Tensor | None = None,
) -> None:
    """Write one reconstruction atomically, with what else was found."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"x": _kept(x), "y": y, "loss": loss.reshape(1)}
    for name, (other_x, other_y) in others.items():
        tensors |= {f"{OTHERS}{name}/x": _kept(other_x), f"{OTHERS}{name}/y": other_y}
    if control is not None:
        tensors[CONTROL] = _kept(control)
    save_tensors(path, tensors, notes)


def _kept(x: Tensor) -> Tensor:
    """Ids of text as they are, all else as float32."""
    return x.float() if x.is_floating_point() else x


def save_scores(path: Path, scores: Tensor, notes: dict[str, str]) -> None:
    """Write what an inference attack believes of a target's candidates, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(path, {"scores": scores}, notes)


def load_answer(path: Path) -> Reconstruction | CandidateScores:
    """Read what an attack answered about a target; RunError if the file is damaged."""
    tensors, notes = load_tensors(path)
    if tensors.keys() == {"scores"}:
        return CandidateScores(tensors["scores"], notes)
    try:
        names = dict.fromkeys(name.rpartition("/")[0] for name in tensors if name.startswith(OTHERS))
        others = {name.removeprefix(OTHERS): (tensors[f"{name}/x"], tensors[f"{name}/y"]) for name in names}
        return Reconstruction(tensors["x"], tensors["y"], tensors["loss"].item(), notes, others, tensors.get(CONTROL))
    except (KeyError, RuntimeError) as error:
        raise RunError(f"{path} cannot be read: it is not a reconstruction ({error})") from None


def load_guess(path: Path) -> Reconstruction:
    """Read one reconstruction; RunError if the file is damaged or holds something else."""
    found = load_answer(path)
    if isinstance(found, CandidateScores):
        raise RunError(f"{path} holds scores of candidates, no reconstruction")
    return found
