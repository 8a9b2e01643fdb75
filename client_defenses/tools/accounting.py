"""Epsilon of a client over the rounds, by Opacus' accountants."""

import math
import warnings
from functools import lru_cache
from typing import Any, NamedTuple

from client_defenses.base import Defense
from fl_app.core.spec import SpecError

CAVEAT = (
    "'as_drawn' holds for one example of a client and the batches as they are drawn; 'sampled' is the customary figure and "
    "holds only if batches were Poisson samples, which they are not here"
)


class Epsilon(NamedTuple):
    """(epsilon, delta) of all that one client released, twice: see `caveat`."""

    sampled: float
    as_drawn: float
    delta: float
    caveat: str = CAVEAT


def epsilon(
    defense: Defense,
    *,
    examples: int,
    batch_size: int,
    steps: int,
    delta: float,
    local_steps: int = 1,
    local_examples: int = 0,
    server_rounds: int = 0,
) -> Epsilon:
    """Compose the `steps` noisy gradients that a client with `examples` examples has released.

    - `sampled`: each step a Poisson sample at rate batch_size / examples (Renyi DP of the sampled Gaussian mechanism).
    - `as_drawn`: no amplification; an example takes part in at most `participations` releases of the Gaussian mechanism.
      Composed and converted exactly (Gaussian DP, Dong et al. 2022), also where later steps depend on earlier ones.

    Neighbours: for dp_sgd one example's gradient replaced by zero (add/remove), sensitivity clip; for dp_gaussian one example
    replaced by another, sensitivity 2 clip, as its batch gradient is clipped as a whole. Batch sizes count as public.
    What else a client sends (metrics, its number of examples) is not covered. See `participations` for the other arguments.
    """
    if not 0 < delta < 1:
        raise SpecError(
            f"delta must lie between 0 and 1, not {delta}: a usual choice is below 1 / examples = {1 / examples:.1e}"
        )
    if examples < 1 or batch_size < 1 or steps < 0:
        raise SpecError("examples and batch_size must be at least 1, steps at least 0")
    noise = defense.noise_multiplier()
    if noise is None:
        raise SpecError(
            f"{type(defense).__name__} promises no epsilon: use dp_sgd(clip=..., noise=...) by itself or with parts after it "
            "that look at messages only, or leave delta at 0"
        )
    if steps == 0:
        return Epsilon(0.0, 0.0, delta)
    if noise == 0:
        return Epsilon(math.inf, math.inf, delta)
    times = participations(
        examples, batch_size, steps, local_steps=local_steps, local_examples=local_examples, server_rounds=server_rounds
    )
    return Epsilon(_sampled(noise, min(1.0, batch_size / examples), steps, delta), gaussian_epsilon(noise, times, delta), delta)


def participations(
    examples: int, batch_size: int, steps: int, *, local_steps: int = 1, local_examples: int = 0, server_rounds: int = 0
) -> int:
    """In how many of its client's `steps` gradients one example can be, by the rules of `round_positions` and `LocalRule`.

    An epoch is a permutation cut into rounds of batch_size * local_steps (or `local_examples`) examples, and a remainder too
    small for a round is left out. Epochs go on while a client is not asked: `server_rounds` is the number of the last round,
    0 if the client took part in all of them.
    """
    wanted = min(local_examples or batch_size * local_steps, examples)
    taken = math.ceil(steps / local_steps)
    epochs = math.ceil(max(server_rounds, taken) / (examples // wanted))
    # Starts of the local batches are batch_size apart, modulo the round's examples: once for each time around.
    within = min(local_steps, (local_steps - 1) * batch_size // wanted + 1)
    return min(steps, min(taken, epochs) * within)


def _opacus() -> Any:
    """Opacus' formulas; imported late, as that takes more than a second."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import RDPAccountant
        from opacus.accountants.analysis import gdp, rdp
    return rdp, gdp, [*RDPAccountant.DEFAULT_ALPHAS, 128.0, 256.0, 512.0, 1024.0]


@lru_cache(maxsize=64)
def _curve(noise: float, rate: float) -> Any:
    """Renyi DP of one step at each order: composition multiplies it by the number of steps."""
    rdp, _, orders = _opacus()
    return rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders)


@lru_cache(maxsize=4096)
def _sampled(noise: float, rate: float, steps: int, delta: float) -> float:
    """Epsilon of `steps` sampled Gaussian mechanisms."""
    rdp, _, orders = _opacus()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order being the first or last one only makes the bound looser
        value, _ = rdp.get_privacy_spent(orders=orders, rdp=_curve(noise, rate) * steps, delta=delta)
    return max(0.0, float(value))


@lru_cache(maxsize=4096)
def gaussian_epsilon(noise: float, times: int, delta: float) -> float:
    """Epsilon of `times` Gaussian mechanisms: together they are one whose noise is smaller by sqrt(times)."""
    _, gdp, _ = _opacus()
    mu = math.sqrt(times) / noise
    if gdp.delta_eps_mu(eps=0.0, mu=mu) <= delta:
        return 0.0
    try:
        return float(gdp.eps_from_mu(mu=mu, delta=delta))
    except ValueError:  # Opacus looks for it up to 500; beyond that a bound is enough
        return _sampled(noise, 1.0, times, delta)
