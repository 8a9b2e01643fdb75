"""What an attacker can do about any defense: match through what it is expected to send."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

import client_defenses
from adversary.base import AttackError, Facts
from adversary.informed.variant import Variant, noise_proof, with_observer
from adversary.search.observers import Observer
from client_defenses import Chain, Defense, Memory
from client_defenses.base import beyond_messages, overrides
from fl_app.core.local import Gradient, Tensors
from fl_app.core.observation import Observation


def granted(seen: Observation, what: str) -> Defense:
    """The defense behind an observation; AttackError if the attacker was not told."""
    if seen.knowledge.defense is None:
        raise AttackError(f"{what} needs the defense to be granted: add --grant defense")
    return client_defenses.build(seen.knowledge.defense)


def protection(seen: Observation, rng: torch.Generator) -> Gradient:
    """How a client with the granted defense takes its gradient, with draws of the attacker's own and nothing remembered."""
    known = granted(seen, "learning through the defense")
    return lambda step: known.protect(step, Memory({}, rng))


def transformation(seen: Observation, rng: torch.Generator) -> Callable[[Tensors], Tensors] | None:
    """What the granted defense makes of a gradient, if that is all that it looks at; else None."""
    known = granted(seen, "learning through the defense")
    if beyond_messages(known):
        return None
    return lambda grads: {name: value.detach() for name, value in known.transform(grads, Memory({}, rng)).items()}


def parts_of(defense: Defense) -> tuple[Defense, ...]:
    """The defenses of a chain, or the one alone."""
    return tuple(defense.parts) if isinstance(defense, Chain) else (defense,)


@dataclass(frozen=True, kw_only=True)
class Expected(Observer):
    """What the granted defense is expected to make of a gradient, by its own `expected`."""

    def gradient(self, gradient: Gradient, seen: Observation) -> Gradient:
        """The gradient as it is sent."""
        known = granted(seen, "the observer 'expected'")
        return lambda step: known.expected(gradient(step))


def variants(defense: Defense, facts: Facts) -> list[Variant]:
    """Matches through what the defense is expected to send, if it says so; and as against any noise."""
    found = [noise_proof(facts)]
    if overrides(defense, "expected"):
        through = Variant(
            "matches through what the defense is expected to send", lambda attack: with_observer(attack, Expected()), "expected"
        )
        found.insert(0, through)
    return found
