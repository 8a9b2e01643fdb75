"""Canaries: crafted examples by which somebody who knows all other examples tells whether one was there."""

import math
from typing import NamedTuple

import torch
from scipy import stats
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from client_defenses import Defense
from client_defenses.base import Memory
from fl_app.core.local import Step, Tensors
from fl_app.core.seeds import derive, generator
from fl_app.scoring import epsilon
from fl_app.scoring.epsilon import Errors

CALIBRATION = 0.1
"""The share of the trials by which the noise of each tensor is measured; they are not scored."""
LEAST = 20
"""The fewest trials for that."""
LOUDER = 4.0
"""What a canary's contrast is multiplied by until its gradient is clipped, at most `TRIES` times."""
TRIES = 8
COARSE = 7
"""Pixels of a canary along a side, before it is enlarged."""
LEVELS = 200


class Stage(NamedTuple):
    """Where an audit takes place: a network with its weights, a client's other examples, and the defense."""

    model: nn.Module
    params: Tensors
    x: Tensor
    y: Tensor
    defense: Defense

    def step(self, x: Tensor, y: Tensor) -> Step:
        """A step on the client's examples and some canaries."""
        return Step(self.params, self.model, torch.cat([self.x, x]), torch.cat([self.y, y]))

    def sent(self, step: Step, seed: int) -> Tensors:
        """What the client sends of a step, as the sum over its examples if the noise is on that; their number is public."""
        law = self.defense.noise_law()
        times = len(step.x) if law is not None and law.summed else 1
        return {name: value.detach() * times for name, value in self.defense.protect(step, Memory.fresh(seed)).items()}

    def expected(self, step: Step) -> Tensors:
        """The same without noise, as the defense says; a defense that lies about it only makes the test weaker."""
        return {name: value.detach() for name, value in self.defense.before_noise(step, Memory.fresh(0)).items()}


def craft(stage: Stage, number: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Coarse noise x (number, *shape) of a class that the network does not see in it, loud enough to be clipped.

    Coarse noise with classes by chance has gradients that are nearly orthogonal, so that many canaries can be told apart.
    """
    law, shape = stage.defense.noise_law(), stage.x.shape[1:]
    bound = (law.clip if law is not None else None) or 0.0
    if len(shape) == 3:
        x = F.interpolate(torch.randn((number, shape[0], COARSE, COARSE), generator=rng), size=shape[1:])
    else:
        x = torch.randn((number, *shape), generator=rng)
    shift = torch.rand(number, generator=rng)
    for _ in range(TRIES):
        outputs = functional_call(stage.model, stage.params, (x,)).detach()
        classes = outputs.shape[1]
        y = (outputs.argmax(1) + 1 + (shift * (classes - 1)).long()) % classes
        grads = Step(stage.params, stage.model, x, y).per_example_gradients()
        norms = torch.stack([value.flatten(1).square().sum(1) for value in grads.values()]).sum(0).sqrt()
        if bool((norms >= bound).all()):
            break
        x = torch.where((norms < bound).view(-1, *[1] * (x.ndim - 1)), x * LOUDER, x)
    return x, y


class Trials(NamedTuple):
    """Trials of one canary: how often telling it was wrong, at the thresholds that suit both bounds, and what it moves."""

    errors: Errors
    errors_gaussian: Errors
    moved: float
    """How far the canary moves what is sent, in standard deviations of the noise as it was measured."""


def one_canary(stage: Stage, trials: int, delta: float, confidence: float, seed: int) -> Trials:
    """Each trial a release with or without the canary, by a coin; the test is the best for Gaussian noise of a size by tensor.

    The noise is measured on the first trials, thresholds follow from it and from the number of trials: none is chosen by those
    that are scored.
    """
    rng = generator(seed, "canary")
    x, y = craft(stage, 1, rng)
    with_it, without = stage.step(x, y), stage.step(x[:0], y[:0])
    base = stage.expected(without)
    moves = {name: value - base[name] for name, value in stage.expected(with_it).items()}
    coins = torch.rand(trials, generator=rng) < 0.5
    products, squares = [], []
    for trial, there in enumerate(coins.tolist()):
        sent = stage.sent(with_it if there else without, derive(seed, "canary", trial))
        rest = {name: (sent[name] - base[name]).double() for name in sent}
        products.append(torch.stack([(rest[name] * moves[name].double()).sum() for name in rest]))
        left = {name: value - there * moves[name].double() for name, value in rest.items()}
        squares.append(torch.stack([value.square().mean() for value in left.values()]))
    first = max(LEAST, int(CALIBRATION * trials))
    sizes = torch.stack([value.double().square().sum() for value in moves.values()])
    weights = 1 / torch.stack(squares)[:first].mean(0).clamp_min(1e-14 * float(sizes.sum()))
    moved = float((sizes * weights).sum().sqrt())
    scores, coins = (torch.stack(products) @ weights / moved)[first:], coins[first:]
    levels = [_level(moved, coins, bound, delta, confidence) for bound in (epsilon.from_errors, epsilon.from_errors_gaussian)]
    plain, gaussian = (_errors(scores, coins, level) for level in levels)
    return Trials(plain, gaussian, moved)


def _errors(scores: Tensor, coins: Tensor, level: float) -> Errors:
    said = scores > level
    return Errors(int((said & ~coins).sum()), int((~coins).sum()), int((~said & coins).sum()), int(coins.sum()))


def _level(moved: float, coins: Tensor, bound: epsilon.Bound, delta: float, confidence: float) -> float:
    """The threshold with the best bound if the scores are N(0, 1) without the canary and N(moved, 1) with it."""
    in_, out = int(coins.sum()), int((~coins).sum())
    reached: list[tuple[float, float]] = []
    for level in torch.linspace(-4, moved + 4, LEVELS).tolist():
        false, missed = math.ceil(out * stats.norm.sf(level)), math.ceil(in_ * stats.norm.cdf(level - moved))
        reached.append((bound(Errors(false, out, missed, in_), delta, confidence), level))
    best = max(value for value, _ in reached)
    suited = [level for value, level in reached if value >= best - 1e-9]
    return suited[len(suited) // 2]


class Run(NamedTuple):
    """One run with many canaries, each in it by a coin: how many guesses were right."""

    canaries: int
    guesses: int
    right: int


def many_canaries(stage: Stage, canaries: int, rounds: int, delta: float, confidence: float, seed: int) -> Run:
    """Guess of each canary whether it was in all rounds of one run, by least squares on what was sent (weights stay).

    How many of the surest guesses are made follows from how well canaries can be told under the promised noise.
    """
    law = stage.defense.noise_law()
    if law is None or not law.summed:
        raise ValueError("many canaries in one run need noise on a sum over examples, as dp_sgd adds it")
    rng = generator(seed, "canaries")
    x, y = craft(stage, canaries, rng)
    base = stage.expected(stage.step(x[:0], y[:0]))
    alone = (Step(stage.params, stage.model, *one) for one in zip(x.split(1), y.split(1), strict=True))
    rows = torch.stack([_vector(stage.expected(step)) for step in alone])
    there = torch.rand(canaries, generator=rng) < 0.5
    step = stage.step(x[there], y[there])
    sent = [_vector(stage.sent(step, derive(seed, "canaries", one))) for one in range(rounds)]
    mean = torch.stack(sent).mean(0) - _vector(base)
    inverse = torch.linalg.inv((rows @ rows.T).double())
    spread = inverse.diagonal().sqrt() * law.scale / math.sqrt(rounds)
    scores = (inverse @ (rows @ mean).double() - 0.5) / spread
    guesses = _guesses(1 / spread, canaries, delta, confidence, rng)
    surest = scores.abs().argsort(descending=True)[:guesses]
    return Run(canaries, guesses, int(((scores > 0) == there)[surest].sum()))


def _guesses(moved: Tensor, canaries: int, delta: float, confidence: float, rng: torch.Generator) -> int:
    """How many guesses promise the best bound, by one made-up run with scores as the promised noise would have them."""
    signs = torch.where(torch.rand(canaries, generator=rng) < 0.5, 1.0, -1.0).double()
    scores = signs * moved / 2 + torch.randn(canaries, generator=rng, dtype=torch.float64)
    right = ((scores > 0) == (signs > 0))[scores.abs().argsort(descending=True)].cumsum(0).tolist()
    numbers = sorted({max(1, round(canaries * share / 16)) for share in range(1, 17)})
    return max(numbers, key=lambda number: epsilon.from_guesses(canaries, number, right[number - 1], delta, confidence))


def _vector(tensors: Tensors) -> Tensor:
    return torch.cat([value.flatten() for value in tensors.values()])
