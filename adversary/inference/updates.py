"""Learning from updates of public batches what an update gives away, at the weights of the round (Melis et al. 2019)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from adversary.base import AttackError, Public
from adversary.inference.base import gradients
from fl_app.core.observation import Candidates, Observation, Task
from fl_app.core.space import attribute_of

RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""As shares of the mean square of the updates; the best on public batches is taken (ours)."""
THROUGH = "trains on public batches that went through the defense"


def public_attribute(task: Task, public: Public, column: str) -> Tensor:
    """Which value of a column each public example has, int64 (n,); AttackError if that is not known."""
    try:
        return attribute_of(task.space, column, public.x, public.a)
    except ValueError as error:
        raise AttackError(str(error)) from None


def simulated(task: Task, seen: Observation, public: Public, chosen: Tensor, defense: str, rng: torch.Generator) -> Tensor:
    """What a client with each of these public batches (batches, examples) would send, (batches, size)."""
    if defense:
        from adversary.informed.simulate import through  # only informed attackers know defenses

        return through(defense, task, seen, public.x[chosen], public.y[chosen], rng, 1)
    used, places = chosen.unique(return_inverse=True)
    shares = F.one_hot(places, len(used)).sum(1).to(public.x) / chosen.shape[1]
    found, start = torch.zeros(()), 0
    for part in gradients(task, seen, Candidates(public.x[used], public.y[used])):
        found = found + shares[:, start : start + len(part)] @ part
        start += len(part)
    return found


def sizes(updates: Tensor) -> Tensor:
    """The absolute entries of updates (n, size), as shares of their length: signs go with the classes of the examples."""
    return F.normalize(updates, dim=1).abs()


def ridge(x: Tensor, y: Tensor) -> Tensor:
    """The weights of a ridge regression of y (n, values) on x (n, size), (values, size), its strength by leave-one-out."""
    kernel = (x @ x.T).double()
    scale, best = kernel.diagonal().mean().clamp_min(1e-30), None
    for strength in RIDGES:
        inverse = torch.linalg.inv(kernel + strength * scale * torch.eye(len(x), dtype=kernel.dtype, device=x.device))
        weights = inverse @ y.double()
        error = (weights / inverse.diagonal()[:, None]).square().mean().item()
        if best is None or error < best[0]:
            best = error, weights
    assert best is not None
    found: Tensor = best[1].T @ x.double()
    return found.to(x)
