"""Informed attackers, who know the defense: a defense is as good as its worst attacker, so they stand beside the naive one."""

import inspect
from collections.abc import Callable
from itertools import product
from typing import Any

import client_defenses
from adversary.base import Facts, Informed
from adversary.informed import (
    bido,
    cells,
    denoised,
    drop_fedsgd,
    expected,
    fedem,
    gradient_dropout,
    latent_perturbation,
    ldpm,
    mixing,
    noise,
    recup,
    refiner,
    soteria,
    sparse,
)
from adversary.informed.variant import Variant
from adversary.learned.ridge import Ridge
from adversary.search.matching import Matching
from client_defenses import Defense
from client_defenses.base import overrides
from client_defenses.none import NoDefense
from client_defenses.refiner import Refiner
from fl_app.core import plugins
from fl_app.core.spec import SpecError

Variants = Callable[[Any, Facts], list[Variant]]
"""(a defense, what can be counted on) -> what an attacker can do about it, the strongest as measured first."""


def nothing(defense: Defense, facts: Facts) -> list[Variant]:
    """Nothing to know."""
    return []


INFORMED: dict[str, Variants] = {
    "bido": bido.variants,
    "dp_gaussian": noise.variants,
    "dp_laplace": noise.variants,
    "dp_sgd": noise.variants,
    "drop_fedsgd": drop_fedsgd.variants,
    "fedem": fedem.variants,
    "gradient_dropout": gradient_dropout.variants,
    "instahide": mixing.variants,
    "latent_perturbation": latent_perturbation.variants,
    "ldpm": ldpm.variants,
    "mask": sparse.variants,
    "mixup": mixing.variants,
    "none": nothing,
    "ppfa": noise.variants,
    "prune": cells.variants,
    "quantize": cells.variants,
    "recup": recup.variants,
    "refiner": refiner.variants,
    "sign": cells.variants,
    "soteria": soteria.variants,
}
"""A defense that is not here, a plug-in for example, is attacked through its own `informed_by`, or as `expected` says."""
BY_CLASS: dict[type[Defense], Variants] = {
    client_defenses.DEFENSES[name]: variants  # type: ignore[misc]
    for name, variants in INFORMED.items()
}


def variants_of(kind: type[Defense]) -> Variants:
    """What makes the informed attackers of a kind of defense."""
    if kind in BY_CLASS:
        return BY_CLASS[kind]
    if not kind.informed_by:
        return expected.variants
    plugins.allow([kind.informed_by])  # by code that was allowed itself
    found = plugins.find("informed attacker", kind.informed_by)
    if found is None:
        raise SpecError(f"{kind.__qualname__}.informed_by is {kind.informed_by!r}, not module:function")
    return found


def words(kind: type[Defense]) -> str:
    """What an informed attacker does about a kind of defense, for people."""
    return (inspect.getdoc(variants_of(kind)) or "").partition("\n")[0]


def attackers(attack: Matching, defense: str, facts: Facts) -> list[Informed]:
    """All that a search becomes once it knows the defense; for a chain, each combination of what its parts offer."""
    known = [(part, variants_of(type(part))(part, facts)) for part in expected.parts_of(client_defenses.build(defense))]
    choices = [found for _, found in known if found]
    informed = []
    for chosen in product(*choices) if choices else ():
        changed, grants = attack, dict.fromkeys(grant for one in chosen for grant in one.grants)
        name = " + ".join(one.name for one in chosen if one.name)
        why, lacking = "; ".join(one.why for one in chosen), "; ".join(one.why_not for one in chosen if one.why_not)
        if attack.of_text and any(one.images for one in chosen):
            lacking = "it is about pixels, and these examples are text"
        if lacking:
            informed.append(Informed(name, None, why, tuple(grants), lacking))
            continue
        for one in chosen:
            changed = one.change(changed)
        if changed != attack:
            informed.append(Informed(name, changed, why, tuple(grants)))
    if attack.of_text:
        return informed
    return informed + denoised.attackers(attack, client_defenses.build(defense), facts) + _learned(defense, facts)


def _learned(defense: str, facts: Facts) -> list[Informed]:
    """Who learns through the defense from public examples, where one update is of one example and takes little time."""
    built = client_defenses.build(defense)
    slow = overrides(built, "on_start") or overrides(built, "on_batch")
    slow = slow or any(isinstance(part, Refiner) for part in expected.parts_of(built))  # it searches within its gradient
    if isinstance(built, NoDefense) or not facts.enough or facts.examples != 1 or slow:
        return []
    return [Informed("ridge", Ridge(), "learns from public examples what an update through the defense gives away")]
