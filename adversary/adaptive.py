"""The attacker who knows the defense: for each defense, what changes in an attack that is told of it.

A defense is as good as its worst attacker, so results show these beside the naive one.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

import adversary
import client_defenses
from adversary.matching import GradientMatching
from client_defenses import Defense
from fl_app.core import spec


class Variant(NamedTuple):
    """One thing that an informed attacker can do about a defense."""

    why: str
    settings: Mapping[str, Any] = {}
    learns: Mapping[str, str] = {}
    """Settings of the attack that take the value of a setting of the defense, which must not be None."""
    at_least: Mapping[str, float] = {}
    """Settings of the attack that are raised to this if they are below."""
    at_most: Mapping[str, float] = {}
    """Settings of the attack that are lowered to this if they are above."""
    averages: bool = False
    """Whether rounds on the same examples are matched together, if the attacker was told that they repeat."""
    name: str = ""
    """What it is called, where a defense has several."""
    evaluator: bool = False
    """Whether it uses the client's own evaluation network, which has to be granted."""
    examples: int = 1
    """The least examples in a batch for which there is anything to know."""
    guesses: int = 1
    """The least guesses at examples of one client, over all its rounds, that it can compare."""


class Pair(NamedTuple):
    """A defense's informed attackers, the one that was worst for it first."""

    variants: tuple[Variant, ...]

    @property
    def why(self) -> str:
        """What they do, for people."""
        return "; or ".join(f"{one.name}: {one.why}" if one.name else one.why for one in self.variants)


class Informed(NamedTuple):
    """An attack once it knows the defense: its spec, and what has to be granted for it; or why it cannot be."""

    name: str
    attack: str | None
    grants: tuple[str, ...] = ("defense",)
    why_not: str = ""


FIRST_ORDER = {"optimizer": "adam", "lr": 0.1, "signed": True, "decay": True, "boxed": True}
"""Slopes that are passed straight through a step are not those of the loss, which a line search cannot follow."""
PRIOR = 0.03
"""The least total variation of an attacker who knows that what it sees is noisy (ours, chosen on 8 MNIST images)."""
LEAST = 3e-4
"""The most total variation in a match whose result is smoothed afterwards (ours, chosen on 8 MNIST images of seed 1)."""
SEEN_NOISE = 1e-3
"""Weight of what D takes for noise (ours, chosen on the same images: 0.01 was no better)."""

NOTHING = Variant("nothing to know")
NOISE = Variant(
    "scale-free objective and labels, a stronger prior; rounds on the same examples are averaged",
    {"objective": "cosine", "labels": "rows"},
    at_least={"tv": PRIOR},
    averages=True,
)
DECOYS = Variant(
    "entries that do not fit are down-weighted; rounds on the same examples are averaged",
    {"objective": "robust", "labels": "rows"},
    at_least={"tv": PRIOR},
    averages=True,
)
KEPT = Variant("matches only the entries that were sent", {"support": True, "labels": "rows"})
LEVELS = Variant(
    "matches through the quantiser, slopes passed straight through", {"through": True, "labels": "rows", **FIRST_ORDER}
)
SOFT = Variant("looks for the mixed label together with the image", {"labels": "joint"})

REFINER = (
    Variant(
        "takes the blended noise out of the guess and smooths it",
        {"objective": "cosine"},
        {"unblend": "alpha"},
        at_most={"tv": LEAST},
        name="unblend",
    ),
    Variant(
        "also keeps the guess from what the client's evaluation network D calls noise",
        {"objective": "cosine", "noise": SEEN_NOISE},
        {"unblend": "alpha"},
        at_most={"tv": LEAST},
        name="knows D",
        evaluator=True,
    ),
    Variant(
        "solves |g* - g| = eps, the smoothest image on the edge of what the projection allows",
        {"objective": "shell"},
        {"eps": "eps"},
        name="shell",
    ),
)
FEDEM = (
    Variant("replays the defense on its guess and takes the perturbation out", {"replay": True}, name="replay"),
    Variant("takes out what the guesses of a client share", learns={"common": "rho_max"}, name="common", guesses=2),
)

PAIRS: dict[str, Pair] = {
    "bido": Pair(
        (Variant("matches through the penalised loss, a public function of the batch", {"through": True}, examples=2),)
    ),
    "dp_gaussian": Pair((NOISE,)),
    "dp_laplace": Pair((NOISE,)),
    "dp_sgd": Pair((NOISE,)),
    "drop_fedsgd": Pair((DECOYS,)),
    "fedem": Pair(FEDEM),
    "gradient_dropout": Pair((DECOYS,)),
    "instahide": Pair((SOFT,)),
    "ldpm": Pair(
        (
            Variant(
                "leaves the class layer out, looks for the label with the image; rounds on the same examples are averaged",
                {"objective": "cosine", "labels": "joint", "ignore": ("last",)},
                at_least={"tv": PRIOR},
                averages=True,
            ),
        )
    ),
    "latent_perturbation": Pair(
        (Variant("puts the mean of the known noise on the latent of its own model", {"through": True}),)
    ),
    "mask": Pair((KEPT,)),
    "mixup": Pair((SOFT,)),
    "none": Pair((NOTHING,)),
    "ppfa": Pair((NOISE,)),
    "prune": Pair((KEPT,)),
    "quantize": Pair((LEVELS,)),
    "refiner": Pair(REFINER),
    "sign": Pair((LEVELS,)),
    "soteria": Pair((Variant("leaves the defended layer out of the match", learns={"ignore": "muted"}),)),
}


def averages(defense: str) -> bool:
    """Whether rounds on the same examples tell an attacker more about a defense."""
    return any(one.averages for part in spec.parse(defense) for one in PAIRS[part.name].variants)


def adapt(attack: str, defense: str, *, repeats: bool = False, rounds: int = 1, examples: int = 1) -> str | None:
    """The spec of an attack once it knows the defense (and that examples repeat over `rounds`); None if nothing changes."""
    found = informed(attack, defense, repeats=repeats, rounds=rounds, examples=examples)
    return next((one.attack for one in found if one.attack is not None), None)


def informed(
    attack: str, defense: str, *, repeats: bool = False, rounds: int = 1, examples: int = 1, evaluator: str = ""
) -> list[Informed]:
    """All that an attack becomes once it knows the defense, the strongest first; empty if nothing changes.

    `rounds` of a client were captured, each with `examples`; `evaluator` is the file of the clients' evaluation network.
    """
    built = adversary.build(attack)
    if not isinstance(built, GradientMatching):
        return []
    pieces = [(client_defenses.build(spec.write(piece)), PAIRS[piece.name].variants) for piece in spec.parse(defense)]
    found = []
    for chosen in product(*(variants for _, variants in pieces)):
        name = " + ".join(one.name for one in chosen if one.name)
        grants = ("defense", "evaluator") if any(one.evaluator for one in chosen) else ("defense",)
        changes: dict[str, Any] = {}
        why_not: list[str] = []
        for one, (known, _) in zip(chosen, pieces, strict=True):
            why_not += _missing(one, known, examples, rounds, evaluator)
            changes |= one.settings
            changes |= {setting: max(getattr(built, setting), least) for setting, least in one.at_least.items()}
            changes |= {setting: min(getattr(built, setting), most) for setting, most in one.at_most.items()}
            changes |= {setting: getattr(known, theirs) for setting, theirs in one.learns.items()}
            if one.evaluator:
                changes["evaluator"] = evaluator or getattr(known, "evaluator", "")
            if one.averages and repeats:
                changes["together"] = rounds
        if why_not:
            found.append(Informed(name, None, grants, "; ".join(why_not)))
        elif (text := _changed(attack, built, changes)) is not None:
            found.append(Informed(name, text, grants))
    return found


def _missing(one: Variant, known: Defense, examples: int, rounds: int, evaluator: str) -> list[str]:
    """Why a variant has nothing to work with here."""
    found = [f"{theirs} is not set in the defense" for theirs in one.learns.values() if getattr(known, theirs) is None]
    if one.evaluator and not (evaluator or getattr(known, "evaluator", "")):
        found.append("the client's evaluation network is not at hand")
    if examples < one.examples:
        found.append(f"there is something to know only from {one.examples} examples a batch on")
    if examples * rounds < one.guesses:
        found.append("nothing that guesses share can be estimated from a single one")
    return found


def _changed(attack: str, built: GradientMatching, changes: dict[str, Any]) -> str | None:
    """The spec of an attack with changes, less those that it was asked not to make; None if none is left."""
    if built.labels in ("given", "joint"):
        changes.pop("labels", None)
    new = {key: value for key, value in changes.items() if getattr(built, key) != value}
    part = spec.single("attack", attack)
    return spec.write(spec.Part(part.name, part.settings | new)) if new else None
