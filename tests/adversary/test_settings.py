"""Defaults and bounds of all settings that a spec can name: whoever changes one says so in tests/golden/settings.txt."""

import dataclasses
from typing import get_type_hints

import pytest
from pydantic.fields import FieldInfo

import adversary
import client_defenses
from adversary import objectives, priors
from adversary.denoise import DENOISERS
from adversary.objectives import L2
from adversary.search import observers
from adversary.search.optimizers import OPTIMIZERS
from adversary.spaces import SPACES, Pixels
from helpers.paths import ROOT

REGISTRIES = {
    "attack": adversary.ATTACKS,
    "defense": client_defenses.DEFENSES,
    "denoiser": DENOISERS,
    "objective": objectives.registered(),
    "observer": observers.registered(),
    "optimizer": OPTIMIZERS,
    "prior": priors.registered(),
    "space": SPACES,
}
TABLE = [line.split(" ", 2) for line in (ROOT / "tests" / "golden" / "settings.txt").read_text().splitlines()]
NEEDED = {"alpha": 0.4, "bits": 2, "epochs": 2, "eps": 1.0, "layers": (), "number": 2, "objective": L2(), "p": 0.5}
NEEDED |= {
    "column": "kind",
    "value": "a",
    "noise": 0.1,
    "rho": 1.0,
    "scale": 0.1,
    "sigma": 0.5,
    "space": Pixels(),
    "weight": 1.0,
}
NAMED = sorted((kind, name) for kind, found in REGISTRIES.items() for name in found)


def settings(kind, name):
    """Each setting with its bounds and its default, if it has one."""
    made, told = REGISTRIES[kind][name], []
    hints = get_type_hints(made, include_extras=True)
    for one in dataclasses.fields(made):
        known = [note for note in getattr(hints[one.name], "__metadata__", ()) if isinstance(note, FieldInfo)]
        bounds = [str(bound) for note in known for bound in note.metadata]
        told.append(" ".join([one.name, *bounds, *([] if one.default is dataclasses.MISSING else [f"= {one.default!r}"])]))
    return told


@pytest.mark.parametrize(("kind", "name"), NAMED, ids="-".join)
def test_settings_are_as_they_were(kind, name):
    made = REGISTRIES[kind][name]
    needed = [one.name for one in dataclasses.fields(made) if one.default is dataclasses.MISSING]
    assert made(**{one: NEEDED[one] for one in needed})
    assert settings(kind, name) == [line for *what, line in TABLE if what == [kind, name]]
