"""Which local rule explains the updates of an app whose owner says what its clients used."""

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fl_app.analysis.app_truth import Pair
from fl_app.attacking import foreign
from fl_app.core.local import LocalRule, Tensors, local_update
from fl_app.store.captures import Captures

EPOCHS = (1, 2, 3, 4, 5)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
MOMENTA = (0.0, 0.5, 0.9, 0.99)
MOST_STEPS = 200
"""Rules with more steps than this on the client with the most examples are not tried."""
LOOKED_AT = 3
"""Clients, those with the fewest examples, on which the grid is tried; its best rules are refined on all."""
PROMISING, REFINED = 12, 4
"""Rules of the grid whose learning rate is refined, and those whose other numbers are too."""
ITERATIONS = 8
EXPLAINED = 1e-4
"""With a relative error below this nothing is left to look for: float32 weights that were subtracted are not better."""
WORSE, SLACK = 1.02, 1e-6
"""A simpler rule, or rounder numbers, are preferred unless the error is larger by this factor and this much."""


class Fit(NamedTuple):
    """A rule, and the relative error |ours - theirs| / |theirs| with which it explains the updates."""

    rule: LocalRule
    error: float


class Case(NamedTuple):
    """A client in float64: the weights that it was sent, its examples and the update that it made of them."""

    params: Tensors
    x: Tensor
    y: Tensor
    update: Tensor


def fit(model: nn.Module, pairs: Sequence[Pair], device: str = "cpu") -> list[Fit]:
    """The rules that explain the updates best, the best first, each as it is for a client with the most examples.

    A grid over kind, optimizer, batch size, epochs and momentum, then Gauss-Newton over learning rate, momentum and weight
    decay. All clients have the rule in common; how many steps it is for each follows from its number of examples.
    """
    pairs = sorted(pairs, key=lambda pair: len(pair.y))
    wide = copy.deepcopy(model).double().to(device)
    cases = [_case(model, pair, device) for pair in pairs]
    few = cases[:LOOKED_AT]
    tried = [Fit(rule, _error(wide, few, rule)) for rule in _grid(pairs) for rule in _started(wide, few, rule)]
    tried.sort(key=lambda one: one.error)
    found = []
    for rule, _ in tried[:PROMISING]:
        found.append(_refined(wide, few, rule, () if rule.kind == "gradient" else ("lr",)))
        if found[-1].error < EXPLAINED:
            break
    found.sort(key=lambda one: one.error)
    better: list[Fit] = []
    for rule, _ in found[:REFINED]:
        one = Fit(rule, _error(wide, cases, rule))
        better.append(_rounded(wide, cases, one))
        if one.error >= EXPLAINED and rule.kind == "delta":
            # With one step there is no velocity yet, so that momentum would change nothing.
            free = ("lr", "weight_decay", *(("momentum",) if rule.optimizer == "sgd" and rule.steps > 1 else ()))
            one = _refined(wide, cases, rule, free)
            better.append(_rounded(wide, cases, one))
        if one.error < EXPLAINED:
            break
    best = min(one.error for one in better)
    # What is explained as well by a plainer rule is not evidence of a stranger one.
    better.sort(key=lambda one: (one.error > WORSE * best + SLACK, _strangeness(one.rule), one.error))
    return [better[0], *sorted((one for one in better[1:] if one.rule != better[0].rule), key=lambda one: one.error)]


def save_with(captures: Captures, folder: Path, rule: LocalRule) -> list[str]:
    """Write the captures again with a rule, as it is for each client; the names of those of which that cannot be told."""
    out, odd = Captures(folder), []
    for seen in captures.read_all()[0]:
        own = rule.for_examples(seen.num_examples)
        if own is None:
            odd.append(f"round {seen.server_round}, client {seen.client}")
        out.write(replace(seen, rule=own or seen.rule))
    return odd


def _case(model: nn.Module, pair: Pair, device: str) -> Case:
    seen = foreign.fitted(pair.seen, model)
    params = {name: value.to(device).double() for name, value in seen.params.items()}
    return Case(params, pair.x.to(device).double(), pair.y.to(device), _flat(seen.update).to(device))


def _flat(update: Tensors) -> Tensor:
    return torch.cat([value.double().flatten() for value in update.values()])


def _grid(pairs: Sequence[Pair]) -> Iterator[LocalRule]:
    """Rules as they are for the client with the most examples, if they say what all the others do."""
    most, told = len(pairs[-1].y), pairs[-1].seen.rule
    yield LocalRule(batch_size=most)
    for size, epochs in itertools.product(sorted({min(size, most) for size in (*BATCHES, told.batch_size, most)}), EPOCHS):
        steps = epochs * math.ceil(most / size)
        plain = LocalRule(kind="delta", batch_size=size, steps=steps, examples=0 if size * steps == most else most)
        # A rule has no short last batch in each of several epochs.
        if steps > MOST_STEPS or (epochs > 1 and most % size) or any(plain.for_examples(len(pair.y)) is None for pair in pairs):
            continue
        for momentum in MOMENTA if steps > 1 else MOMENTA[:1]:
            yield replace(plain, momentum=momentum)
        yield replace(plain, optimizer="adam")


def _predicted(model: nn.Module, case: Case, rule: LocalRule) -> Tensor:
    own = rule.for_examples(len(case.y)) or rule
    return _flat(local_update(model, case.params, case.x, case.y, own))


def _residual(model: nn.Module, cases: Sequence[Case], rule: LocalRule) -> Tensor:
    """What the rule leaves unexplained, relative to the size of all updates."""
    size = torch.cat([case.update for case in cases]).norm()
    residual: Tensor = torch.cat([_predicted(model, case, rule) - case.update for case in cases]) / size
    return residual


def _error(model: nn.Module, cases: Sequence[Case], rule: LocalRule) -> float:
    error = _residual(model, cases, rule).norm().item()
    return error if math.isfinite(error) else math.inf


def _started(model: nn.Module, cases: Sequence[Case], rule: LocalRule) -> list[LocalRule]:
    """The rule with about the right learning rate: how far a tiny one has to be scaled; empty if it points elsewhere."""
    if rule.kind == "gradient":
        return [rule]
    tiny = replace(rule, lr=1e-4)
    ours = torch.cat([_predicted(model, case, tiny) for case in cases])
    theirs = torch.cat([case.update for case in cases])
    scale = 1e-4 * (ours @ theirs / (ours @ ours)).item()
    if not 0 < scale < math.inf:
        return []
    starts = [replace(rule, lr=factor * scale) for factor in (0.5, 1, 2)]
    return [min(starts, key=lambda one: _error(model, cases, one))]


def _refined(model: nn.Module, cases: Sequence[Case], rule: LocalRule, free: Sequence[str]) -> Fit:
    """The rule with those of its numbers that are free changed by damped Gauss-Newton steps while it gets better."""
    best, residual = rule, _residual(model, cases, rule)
    for _ in range(ITERATIONS if free else 0):
        columns = []
        for name in free:
            value = getattr(best, name)
            small = 1e-5 * (value or 1e-2)
            columns.append((_residual(model, cases, _moved(best, {name: value + small})) - residual) / small)
        jacobian = torch.stack(columns, 1)
        if not bool(jacobian.isfinite().all()):
            break
        change = torch.linalg.lstsq(jacobian, -residual[:, None]).solution[:, 0].tolist()
        for share in (1.0, 0.3, 0.1, 0.01):
            moved = _moved(best, {name: getattr(best, name) + share * by for name, by in zip(free, change, strict=True)})
            after = _residual(model, cases, moved)
            if after.norm() < residual.norm():
                gained = 1 - (after.norm() / residual.norm()).item()
                best, residual = moved, after
                break
        else:
            break
        if gained < 0.01:
            break
    return Fit(best, residual.norm().nan_to_num(math.inf).item())


def _moved(rule: LocalRule, values: dict[str, float]) -> LocalRule:
    """The rule with other numbers, kept where they are allowed."""
    limits = {"lr": (1e-12, 1e12), "momentum": (0.0, 0.9999), "weight_decay": (0.0, 1e6)}
    return replace(rule, **{name: min(max(value, limits[name][0]), limits[name][1]) for name, value in values.items()})  # type: ignore[arg-type]


def _rounded(model: nn.Module, cases: Sequence[Case], found: Fit) -> Fit:
    """The rule with as few digits, and as few settings, as explain the updates as well."""
    if found.rule.kind == "gradient":
        return found
    for digits, decays, turns in itertools.product((1, 2, 3, 4), (True, False), (True, False)):
        values = {name: float(f"{getattr(found.rule, name):.{digits}g}") for name in ("lr", "momentum", "weight_decay")}
        values |= {"weight_decay": 0.0} if decays else {}
        values |= {"momentum": 0.0} if turns else {}
        rounder = _moved(found.rule, values)
        if (error := _error(model, cases, rounder)) <= WORSE * found.error + SLACK:
            return Fit(rounder, error)
    return found


def _strangeness(rule: LocalRule) -> tuple[int, int]:
    return sum([rule.kind == "delta", rule.optimizer == "adam", rule.momentum > 0, rule.weight_decay > 0]), rule.steps
