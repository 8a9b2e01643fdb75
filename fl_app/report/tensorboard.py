"""A run or sweep as TensorBoard events: one TensorBoard run per cell, with its scalars by round, ledgers and pictures."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fl_app.analysis.attackers import Attacker
from fl_app.analysis.results import WORST_MEMBER, AttackResult, CellResult, Study
from fl_app.scoring.metrics import METRICS
from fl_app.store.files import RunError

NOT_SCALARS = ("round",)
PICTURES = ("grid.png", "beside-naive.png")


def export(study: Study, folder: Path) -> list[Path]:
    """Write events below `folder`, which must be empty or new; returns the folder of each cell."""
    writer = _writer()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty: TensorBoard would show old and new events together, choose another folder")
    places: list[Path] = []
    for number, cell in enumerate(study.cells):
        name = _safe(cell.name)
        place = folder / (name if folder / name not in places else f"{name}-{number}")
        places.append(place)
        with writer(str(place)) as out:
            _cell(out, cell)
    return places


def _writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError(f"this needs TensorBoard ({error}): pip install 'thorns[tensorboard]'") from error
    return SummaryWriter


def _safe(name: str) -> str:
    """A name that is one folder, below this one."""
    return re.sub(r"[^A-Za-z0-9._=,+-]+", "-", name).strip("-.")[:100] or "cell"


def _cell(out: Any, cell: CellResult) -> None:
    out.add_text("settings", _lines({**cell.varied, "seed": cell.seed}))
    if (reason := cell.unattacked) is not None:
        out.add_text("failed" if cell.failed else "open", reason)
    for line in cell.training.metrics if cell.training else []:
        for name, value in line.items():
            if name not in NOT_SCALARS and isinstance(value, int | float):
                out.add_scalar(f"training/{name}", value, line["round"])
    for attack in cell.attacks:
        _attack(out, attack)


def _attack(out: Any, attack: AttackResult) -> None:
    """Means over the targets of each round, as one curve per metric and attack."""
    name = f"{attack.who} {attack.folder.name}"
    out.add_text(name, _lines({"attack": attack.attack, "asked": attack.asked, "granted": attack.ledger}))
    attacker, *members = [Attacker([view]) for view in attack.views]
    for server_round in attacker.rounds:
        failed = sum(not target.done for target in attacker.targets if target.round == server_round)
        out.add_scalar(f"failed targets/{name}", failed, server_round)
        for metric in (*METRICS, *attack.measures):
            for one, suffix in ((attacker, ""), *((one, f", {WORST_MEMBER}") for one in members)):
                mean = one.summary(metric, server_round).mean
                if mean is not None:
                    out.add_scalar(f"{metric}/{name}{suffix}", mean, server_round)
    for picture in PICTURES:
        if (attack.folder / picture).exists():
            out.add_image(f"{name}/{picture.removesuffix('.png')}", _pixels(attack.folder / picture), dataformats="HWC")


def _pixels(path: Path) -> Any:
    """(h, w, 3) uint8."""
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise RunError(f"{path} is not a picture: {error}") from error


def _lines(facts: dict[str, Any]) -> str:
    return "  \n".join(f"{key}: `{value}`" for key, value in facts.items())
