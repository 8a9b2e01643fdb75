"""Attacks on captured updates.

They may import `fl_app.core`, `fl_app.models` and `fl_app.store` only, and so cannot reach any data.
"""

from collections.abc import Callable

from adversary.base import Attack, AttackError, Guess
from adversary.matching import GradientMatching
from adversary.presets import DLG, IDLG, CosineLBFGS, GradInversion, InvertingGradients
from fl_app.core import spec
from fl_app.core.observation import Knowledge, Observation, Task

ATTACKS: dict[str, Callable[..., Attack]] = {
    "cosine_lbfgs": CosineLBFGS,
    "dlg": DLG,
    "grad_inversion": GradInversion,
    "gradient_matching": GradientMatching,
    "idlg": IDLG,
    "inverting_gradients": InvertingGradients,
}


def build(text: str) -> Attack:
    """`"inverting_gradients(tv=1e-3, iterations=1000)"` -> an attack."""
    return spec.build_one("attack", text, ATTACKS)


__all__ = ["ATTACKS", "Attack", "AttackError", "Guess", "Knowledge", "Observation", "Task", "build"]
