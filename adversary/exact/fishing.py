"""The read-out of Fishing (Wen et al., ICML 2022): gradients of single examples, and an attack on each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from adversary.base import Attack, AttackError, Guess
from adversary.exact.found import Found, guess_of
from adversary.standard import Standard
from fl_app.core.local import LocalRule, Tensors
from fl_app.core.observation import Observation, Task
from fl_app.core.seeds import generator
from fl_app.core.spec import Named

ALONE = LocalRule(batch_size=1)
WHOLE = 0.05
"""How far a number of examples may be from a whole one before the cut went through one of them."""
NEVER = -50.0
"""The bias of a class that nothing is taken for."""


def _attacks() -> Mapping[str, Any]:
    import adversary  # late: this attack is one of them

    return adversary.ATTACKS


class _Catch(NamedTuple):
    """The last layer's name, the class that is left of it, and in which direction and how far its weights point."""

    layer: str
    label: int
    row: Tensor
    steep: float
    by_class: bool


@dataclass(frozen=True, kw_only=True)
class FishingReadout(Attack):
    """For a server=fishing: gradients of single examples, and then any attack on these.

    The class attack gives one where a batch has one example of the class. The feature attack gives one for each two rounds
    with a single example between their cuts; it needs the same examples in all rounds.
    """

    attack: Annotated[Attack, Named("attack", _attacks)] = Standard(labels="given", minutes=2.0)  # noqa: RUF009
    """The attack on the gradient of one example, whose class the server knows, as it made it up."""

    @property
    def by_client(self) -> bool:
        """Rounds are compared."""
        return True

    def cost(self, examples: int, rule: LocalRule) -> float:
        """That of the other attack, if it finds one example."""
        return self.attack.cost(1, ALONE)

    def shortened(self, iterations: int) -> "FishingReadout | None":
        """With a shortened attack."""
        short = self.attack.shortened(iterations)
        return None if short is None else replace(self, attack=short)

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Find the gradients of single examples by client, and attack them all together."""
        single: dict[int, list[Observation]] = {}
        for one in seen:
            if one.client not in single:
                single[one.client] = _singles([other for other in seen if other.client == one.client], task)
        whole = [one for of_client in single.values() for one in of_client]
        images: dict[int, Tensor] = {}
        if whole:
            first = {one.client: stream for one, stream in zip(reversed(seen), reversed(streams), strict=True)}
            places = [(client, place) for client, ones in single.items() for place in range(len(ones))]
            own = [generator(first[client].initial_seed(), place) for client, place in places]
            guess = self.attack.run(whole, task, own)
            if not isinstance(guess, Guess):
                raise AttackError("fishing needs an attack that rebuilds examples")
            for (client, _), x in zip(places, guess.x, strict=True):
                images[client] = torch.cat([images[client], x]) if client in images else x
        none = torch.empty(0, *task.space.shape)
        found = [Found(x := images.get(one.client, none), torch.ones(len(x))) for one in seen]
        return guess_of(found, seen, task)


def _singles(seen: Sequence[Observation], task: Task) -> list[Observation]:
    """The gradients of single examples in the rounds of one client, as if each had been sent by itself."""
    catch = _catch(seen[0], task)
    number, bias = seen[0].num_examples, f"{catch.layer}.bias"
    if catch.by_class:
        parts = [{name: number * value for name, value in one.update.items()} for one in seen]
    else:
        if len(seen) < 2 or not all(one.knowledge.repeats for one in seen):
            raise AttackError("the feature attack compares rounds with the same examples: capture several, and --grant repeats")
        usual = {name: value for name, value in seen[0].params.items() if name != bias}
        if any(not torch.equal(one.params[name], value) for one in seen for name, value in usual.items()):
            raise AttackError("the feature attack compares rounds with the same weights but for the cut: capture them in a row")
        ordered = sorted(seen, key=lambda one: -one.params[bias][catch.label].item())
        parts = [{name: number * (b.update[name] - a.update[name]) for name in a.update} for a, b in pairwise(ordered)]
    alone = [part for part in parts if abs(part[bias][catch.label].item() + 1) < WHOLE]
    return [_single(part, seen[0], catch) for part in alone]


def _single(part: Tensors, seen: Observation, catch: _Catch) -> Observation:
    """The gradient of one example at a last layer of ordinary size that takes it for anything but its class."""
    weight, bias = f"{catch.layer}.weight", f"{catch.layer}.bias"
    rows, biases = torch.zeros_like(part[weight]), torch.zeros_like(part[bias])
    rows[catch.label], biases[catch.label] = catch.row, NEVER
    errors = torch.full_like(biases, 1 / (len(biases) - 1))
    errors[catch.label] = -1
    update = {name: value / catch.steep for name, value in part.items()}
    update |= {weight: -errors[:, None] * part[weight][catch.label], bias: errors}
    return replace(
        seen,
        params={**seen.params, weight: rows, bias: biases},
        update=update,
        rule=ALONE,
        num_examples=1,
        knowledge=replace(seen.knowledge, labels=torch.tensor([catch.label])),
    )


def _catch(seen: Observation, task: Task) -> _Catch:
    layers = [name for name, one in task.model.named_modules() if isinstance(one, nn.Linear)]
    rows, bias = (seen.params.get(f"{layers[-1] if layers else ''}.{kind}") for kind in ("weight", "bias"))
    if rows is None or bias is None or len(left := rows.any(1).nonzero()) != 1:
        raise AttackError("the last layer is not one of which a single class is left: it is for runs with server=fishing")
    label = int(left)
    steep = rows[label].norm().item()
    others = torch.cat([bias[:label], bias[label + 1 :]])
    return _Catch(layers[-1], label, rows[label] / steep, steep, by_class=bool((others > 0).all()))
