"""One thing that an attacker can do about a defense, and the changes to a search that several of them share."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from adversary.base import Facts
from adversary.labels import LabelRule
from adversary.objectives import Cosine, Objective
from adversary.priors import TotalVariation
from adversary.search.matching import Matching
from adversary.search.observers import Observer
from adversary.search.optimizers import LBFGS, Adam, GaussNewton, Optimizer
from adversary.spaces import ClassGaussian

PRIOR = 0.03
"""The least total variation of an informed attacker on noisy updates (ours, chosen on 8 MNIST images)."""
ITERATIONS = 200
"""The most iterations of the search for the most likely image: it has settled by then (ours)."""


class Variant(NamedTuple):
    """What an informed attacker does: a change of the search, or why there is nothing that it could do here."""

    why: str
    change: Callable[[Matching], Matching]
    name: str = ""
    """What it is called, where a defense has several."""
    grants: tuple[str, ...] = ("defense",)
    why_not: str = ""
    images: bool = False
    """Whether it is about pixels, so that no search over words can do it."""


def with_labels(attack: Matching, rule: LabelRule) -> Matching:
    """Another label rule, unless the attack was given the labels or looks for them itself."""
    return attack if attack.labels in ("given", "joint") else replace(attack, labels=rule)


def with_tv(attack: Matching, *, least: float = 0.0, most: float = float("inf")) -> Matching:
    """Total variation of a weight within bounds."""
    weight = next((prior.weight for prior in attack.priors if isinstance(prior, TotalVariation)), 0.0)
    others = tuple(prior for prior in attack.priors if not isinstance(prior, TotalVariation))
    weight = min(max(weight, least), most)
    return replace(attack, priors=(TotalVariation(weight=weight), *others) if weight else others)


def with_observer(attack: Matching, observer: Observer) -> Matching:
    """One more thing that is known of how the update came about."""
    return attack if observer in attack.observers else replace(attack, observers=(*attack.observers, observer))


def with_objective(attack: Matching, objective: Objective) -> Matching:
    """Another objective; one that is no sum of squares is left to L-BFGS where Gauss-Newton was asked for."""
    steps = attack.optimizer if objective.squares else by_gradients(attack)
    return replace(attack, objective=objective, optimizer=replace(steps, solved=0.0))  # that was on the scale of another loss


def by_gradients(attack: Matching) -> Optimizer:
    """The optimiser of an attack, or L-BFGS in the place of Gauss-Newton, whose iterations are few and long."""
    return LBFGS() if isinstance(attack.optimizer, GaussNewton) else attack.optimizer


def averaged(attack: Matching, facts: Facts) -> Matching:
    """Rounds on the same examples matched together, if the attacker was told that they repeat: noise averages out."""
    return replace(attack, rounds=max(attack.rounds, facts.rounds)) if facts.repeats else attack


def first_order(attack: Matching) -> Matching:
    """Signed Adam: a gradient that is passed straight through a step is not that of the loss, so no line search follows it."""
    old = by_gradients(attack)
    steps = Adam(iterations=old.iterations, restarts=old.restarts, solved=old.solved, signed=True, decay=True)
    return replace(attack, optimizer=steps)


def noise_proof(facts: Facts) -> Variant:
    """Against any noise: what does not depend on its scale, a stronger prior, the mean of several rounds."""

    def change(attack: Matching) -> Matching:
        attack = with_labels(with_objective(attack, Cosine()), "rows")
        return averaged(with_tv(attack, least=PRIOR), facts)

    return Variant(
        "scale-free objective and labels, a stronger prior; rounds on the same examples are averaged", change, "noise-proof"
    )


def most_likely(law: Objective, facts: Facts, why: str, space: ClassGaussian | None = None) -> Variant:
    """The most likely image of its class, given public examples and the log-likelihood of what was sent."""

    def change(attack: Matching) -> Matching:
        steps = LBFGS(iterations=min(ITERATIONS, by_gradients(attack).iterations))
        attack = with_labels(with_objective(attack, law), "rows")
        return averaged(replace(attack, space=space or ClassGaussian(), priors=(), optimizer=steps), facts)

    why_not = "" if facts.enough else f"{facts.public} public examples are too few to learn from"
    return Variant(why, change, "most likely", why_not=why_not, images=True)
