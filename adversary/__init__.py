"""Attacks on captured updates.

They may import `fl_app.local`, `fl_app.models`, `fl_app.spec` and `client_defenses` only, and so cannot reach any data.
"""

from collections.abc import Callable

from adversary.base import Attack, AttackError, Guess, Knowledge, Observation, Task
from adversary.matching import GradientMatching
from adversary.presets import DLG, IDLG, CosineLBFGS, GradInversion, InvertingGradients
from fl_app import spec

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
