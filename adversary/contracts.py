"""What every attack promises, as functions that raise AssertionError with a plain sentence.

The tests run them on all registered attacks, `thorns check` and a generated test on one from outside.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from adversary.base import Attack, AttackError, Belief, Guess
from adversary.cases import FITTED, NETWORKS, TARGETS, Case, case_of
from fl_app.core.contracts import copied, must, same, settings, tracked
from fl_app.core.text import Tokens

FEW = 4
"""Iterations where it matters that two answers are the same, not that they are good."""
ROUNDING = 1e-2
"""How far a pixel may move when other targets are attacked beside it: sums over more of them round otherwise."""


def case_for(attack: Attack, *, quick: bool = True) -> tuple[Attack, Case]:
    """The attack, shortened if `quick` and trained if it has to be, and targets of the first network that it takes."""
    refusal = AttackError("it takes no network")
    chosen = (attack.shortened(FEW) or attack) if quick else attack
    for network in NETWORKS:
        case = case_of(network)
        try:
            ready = _prepared(chosen, case)
            (ready.shortened(1) or ready if not ready.trained else ready)(case.seen[:1], case.task, 0)
        except AttackError as error:
            # Of another kind of examples: that says less than what it says of its own.
            refusal = error if chosen.of_text == isinstance(case.task.space, Tokens) else refusal
            continue
        return ready, case_of(network)  # another one: the attack may have changed the first
    raise AttackError(f"it attacks none of the networks that it is tried on: {refusal}")


def _prepared(attack: Attack, case: Case) -> Attack:
    if not attack.trained:
        return attack
    with tempfile.TemporaryDirectory() as folder:
        return attack.prepare(case.task, case.seen[0], case.public, 2, Path(folder))


def _parts(answer: Guess | Belief) -> dict[str, Tensor]:
    return {name: value for name, value in answer._asdict().items() if isinstance(value, Tensor)}


def answers(attack: Attack) -> None:
    """It answers for each target, with finite numbers, and leaves torch's global generator alone."""
    ready, case = case_for(attack)
    before = torch.random.get_rng_state()
    answer = ready(case.seen, case.task, 0)  # shapes and space are checked there
    must(torch.equal(before, torch.random.get_rng_state()), "it draws from torch's global generator: use the streams")
    for name, value in _parts(answer).items():
        must(bool(value.isfinite().all()), f"{name} holds values that are not finite")
    if isinstance(answer, Guess):
        must(case.task.space.holds(answer.x), "its examples are not in the task's space")
        must(answer.y.dtype == torch.int64, f"the labels have the type {answer.y.dtype}, not int64")


def seeded(attack: Attack) -> None:
    """The same seed gives the same answer."""
    ready, case = case_for(attack)
    first, again = (_parts(ready(case.seen, case.task, 3)) for _ in range(2))
    must(same(first, again), "the same seed gives another answer: take every draw from the streams")


def inputs_stay(attack: Attack) -> None:
    """What was observed is left as it was, and so is the model."""
    ready, case = case_for(attack)
    update, params, state = (copied(one) for one in (case.seen[0].update, case.seen[0].params, case.task.model.state_dict()))
    ready(case.seen, case.task, 0)
    must(same(update, case.seen[0].update), "it changes the update in place")
    must(same(params, case.seen[0].params), "it changes the weights in place")
    must(same(state, dict(case.task.model.state_dict())), "it changes the model in place")
    given = [*case.seen[0].update.values(), *case.seen[0].params.values()]
    must(not tracked(given), "it leaves updates or weights that require a gradient: detach them first")


def nothing_sent(attack: Attack) -> None:
    """An update of zeros, as a defense may send it, is refused in words or answered with finite numbers."""
    ready, case = case_for(attack)
    zeros = [replace(one, update={name: torch.zeros_like(value) for name, value in one.update.items()}) for one in case.seen]
    try:
        found = _parts(ready(zeros, case.task, 0))
    except AttackError:
        return
    for name, value in found.items():
        must(bool(value.isfinite().all()), f"of an update of zeros, {name} holds values that are not finite")


def only_what_is_seen(attack: Attack) -> None:
    """Its answer depends on what was observed and on nothing else: not on the true examples, wherever they lie."""
    ready, case = case_for(attack)
    first = _parts(ready(case.seen, case.task, 0))
    moved = [replace(one, params=copied(one.params), update=copied(one.update)) for one in case.seen]
    for other in moved[1:]:
        object.__setattr__(other, "params", moved[0].params)  # the weights of a round are shared
    case.x.fill_(case.x.new_tensor(0.5).item())
    must(same(first, _parts(ready(moved, case.task, 0))), "the same observation gives another answer")


def alone(attack: Attack) -> None:
    """A target gets the same answer alone, among others and in another order, up to rounding."""
    ready, case = case_for(attack)
    together = _parts(ready(case.seen, case.task, 0))
    for order in ([0], [1], [2], [2, 0, 1]):
        found = _parts(ready([case.seen[place] for place in order], case.task, 0))
        for name in found.keys() - {"loss"}:
            near = torch.allclose(found[name].double(), together[name][order].double(), atol=ROUNDING, rtol=ROUNDING)
            must(near, f"{name} of a target depends on what is attacked beside it: draw from its own stream alone")


def beats_blind(attack: Attack) -> None:
    """Of an undefended update it rebuilds more than somebody who has not seen it: than noise, than grey, than the mean."""
    ready, case = case_for(attack, quick=False)
    answer = ready(case.seen, case.task, 0)
    if isinstance(answer, Belief):
        if attack.question == "membership":
            # Some look at the update, which tells most at random weights; others at weights that fit the members.
            told = [_members_first(ready, case), _members_first(ready, case_of(NETWORKS[0], FITTED))]
            must(any(told), "it believes no more in what a target used than in its candidates on average")
        return  # nothing is rebuilt
    blind = {"noise": case.task.space.noise(TARGETS, torch.Generator().manual_seed(9))[:, None]}
    if case.x.is_floating_point():
        blind |= {"a grey image": torch.full_like(case.x, 0.5), "the mean image": case.public.x.mean(0).expand_as(case.x)}
    else:
        blind |= {"another sentence": case.public.x[0].expand_as(case.x)}
    own = _error(answer.x, case.x)
    for name, guess in blind.items():
        bound = _error(guess, case.x)
        must(own < bound, f"its error is {own:.4f}, that of {name} {bound:.4f}: it rebuilds nothing")


def _members_first(ready: Attack, case: Case) -> bool:
    """Whether the scores of what the targets used, the first candidates, lie above all on average."""
    answer = ready(case.seen, case.task, 0)
    return isinstance(answer, Belief) and bool(answer.scores.diagonal().mean() > answer.scores.mean())


def _error(one: Tensor, other: Tensor) -> float:
    """The mean squared error; of ids the share of those that are others."""
    return ((one - other).square() if one.is_floating_point() else (one != other).float()).mean().item()


CONTRACTS: dict[str, Callable[[Attack], None]] = {
    "settings": settings,
    "answers": answers,
    "seeded": seeded,
    "inputs_stay": inputs_stay,
    "nothing_sent": nothing_sent,
    "only_what_is_seen": only_what_is_seen,
    "alone": alone,
    "beats_blind": beats_blind,
}
