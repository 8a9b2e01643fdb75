"""The attacker who knows the defense: for each defense, what changes in an attack that is told of it.

A defense is as good as its worst attacker, so results show this one beside the naive one.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import adversary
import client_defenses
from adversary.matching import GradientMatching
from fl_app import spec


class Pair(NamedTuple):
    """What an informed attacker does about a defense."""

    why: str
    settings: Mapping[str, Any] = {}
    learns: Mapping[str, str] = {}
    """Settings of the attack that take the value of a setting of the defense."""
    averages: bool = False
    """Whether rounds on the same examples are matched together, if the attacker was told that they repeat."""


FIRST_ORDER = {"optimizer": "adam", "lr": 0.1, "signed": True, "decay": True, "boxed": True}
"""Slopes that are passed straight through a step are not those of the loss, which a line search cannot follow."""
PRIOR = 0.03
"""The least total variation of an attacker who knows that what it sees is noisy (ours, chosen on 8 MNIST images)."""

NOISE = Pair(
    "scale-free objective and labels, a stronger prior; rounds on the same examples are averaged",
    {"objective": "cosine", "labels": "rows", "tv": PRIOR},
    averages=True,
)
DECOYS = Pair(
    "entries that do not fit are down-weighted; rounds on the same examples are averaged",
    {"objective": "robust", "labels": "rows", "tv": PRIOR},
    averages=True,
)
KEPT = Pair("matches only the entries that were sent", {"support": True, "labels": "rows"})
LEVELS = Pair(
    "matches through the quantiser, slopes passed straight through", {"through": True, "labels": "rows", **FIRST_ORDER}
)

SOFT = Pair("looks for the mixed label together with the image", {"labels": "joint"})

PAIRS: dict[str, Pair] = {
    "bido": Pair("its terms compare examples and vanish for one: nothing to know there"),
    "dp_gaussian": NOISE,
    "dp_laplace": NOISE,
    "dp_sgd": NOISE,
    "drop_fedsgd": DECOYS,
    "fedem": Pair("the match stays; what the guesses of a client share is its delta, see adversary/fedem_attack.py"),
    "gradient_dropout": DECOYS,
    "instahide": SOFT,
    "ldpm": Pair(
        "leaves the class layer out, looks for the label with the image; rounds on the same examples are averaged",
        {"objective": "cosine", "labels": "joint", "tv": PRIOR, "ignore": ("last",)},
        averages=True,
    ),
    "latent_perturbation": Pair("puts the mean of the known noise on the latent of its own model", {"through": True}),
    "mask": KEPT,
    "mixup": SOFT,
    "none": Pair("nothing to know"),
    "ppfa": NOISE,
    "prune": KEPT,
    "quantize": LEVELS,
    "refiner": Pair("takes the blended noise out of the guess and smooths it", {"objective": "cosine"}, {"unblend": "alpha"}),
    "sign": LEVELS,
    "soteria": Pair("leaves the defended layer out of the match", learns={"ignore": "muted"}),
}


def averages(defense: str) -> bool:
    """Whether rounds on the same examples tell an attacker more about a defense."""
    return any(PAIRS[part.name].averages for part in spec.parse(defense))


def adapt(attack: str, defense: str, *, repeats: bool = False, rounds: int = 1) -> str | None:
    """The spec of an attack once it knows the defense (and that examples repeat over `rounds`); None if nothing changes."""
    part = spec.single("attack", attack)
    built = adversary.build(attack)
    if not isinstance(built, GradientMatching):
        return None
    changes: dict[str, Any] = {}
    for piece in spec.parse(defense):
        pair, known = PAIRS[piece.name], client_defenses.build(spec.write(piece))
        changes |= pair.settings
        changes |= {setting: getattr(known, theirs) for setting, theirs in pair.learns.items()}
        if pair.averages and repeats:
            changes["together"] = rounds
    if built.labels in ("given", "joint"):
        changes.pop("labels", None)
    if "tv" in changes:
        changes["tv"] = max(built.tv, changes["tv"])
    new = {key: value for key, value in changes.items() if getattr(built, key) != value}
    return spec.write(spec.Part(part.name, part.settings | new)) if new else None
