"""Several examples from one update by a network, which may answer with them in any order (LTI, Section 4)."""

from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.func import functional_call

from adversary.base import Public
from adversary.learned.decoder import PATIENCE, Training, network
from adversary.learned.sketch import Sketch
from adversary.learned.updates import at_once, groups
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task

CHUNK = 100
"""Updates that are held at once before they are sketched."""
TWICE = 2
"""How often an epoch shows each public example, each time in another company (ours)."""


class Made(NamedTuple):
    """What updates of batches are made of."""

    task: Task
    seen: Observation
    used: Public
    held: Public
    """Public examples that are held out, of which no version is among those that are used."""
    buckets: int


def learned(made: Made, training: Training, rng: torch.Generator) -> Tensors:
    """All that `decoded` needs; groups of public examples and the draws of the defense are others in each epoch."""
    task, seen, used, held, buckets = made
    size = seen.num_examples
    few = groups(used, CHUNK, size, rng)
    sketch = Sketch.drawn(at_once(task, seen, *few, rng), buckets, rng)

    def drawn(known: Public, number: int) -> tuple[Tensor, Tensor]:
        """(sketches (number, buckets), examples (number, size, pixels))."""
        x, y = groups(known, number, size, rng)
        parts = zip(x.split(CHUNK), y.split(CHUNK), strict=True)
        return torch.cat([sketch.of(at_once(task, seen, *part, rng)) for part in parts]), x.flatten(2)

    told, truth = drawn(held, max(1, len(held.x) // size))
    middle, mean = told.mean(0), used.x.flatten(1).mean(0)
    scale = (told - middle).square().mean().sqrt().clamp_min(1e-12)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=rng)))
        net = network(told.shape[1], training.hidden, size * truth.shape[2]).to(truth)
        torch.nn.init.normal_(net.get_parameter("4.weight"), std=1e-3)  # equal answers would stay equal for long
    optimizer = torch.optim.Adam(net.parameters(), lr=training.lr)

    def answers(features: Tensor) -> Tensor:
        return mean + torch.as_tensor(net((features - middle) / scale)).view(len(features), size, -1)

    with torch.no_grad():
        least, waited = matched(answers(told), truth), 0
    kept = _copied(net)
    for _ in range(training.epochs):
        features, x = drawn(used, max(1, TWICE * len(used.x) // size))
        for some, wanted in zip(features.split(training.batch), x.split(training.batch), strict=True):
            optimizer.zero_grad()
            matched(answers(some), wanted).backward()
            optimizer.step()
        with torch.no_grad():
            error = matched(answers(told), truth)
        waited += 1
        if error < least:
            least, kept, waited = error, _copied(net), 0
        if waited == PATIENCE:
            break
    return {**kept, **sketch._asdict(), "middle": middle, "scale": scale, "mean": mean}


def decoded(learned: Tensors, features: Tensor) -> Tensor:
    """The examples (n, size, pixels) of updates whose sketches are (n, buckets), in [0, 1]."""
    weights = {name.removeprefix("net/"): value for name, value in learned.items() if name.startswith("net/")}
    (hidden, inputs), outputs = weights["0.weight"].shape, len(weights["4.bias"])
    with torch.random.fork_rng(devices=[]):
        net = network(inputs, hidden, outputs).to(features)
    told = (features - learned["middle"]) / learned["scale"]
    with torch.no_grad():
        found = torch.as_tensor(functional_call(net, weights, (told,)))
    return (learned["mean"] + found.view(len(features), -1, len(learned["mean"]))).clamp(0, 1)


def matched(guess: Tensor, truth: Tensor) -> Tensor:
    """The mean squared error of examples (n, size, pixels) in the order in which they fit best (Hungarian matching)."""
    # |a - b|^2 = |a|^2 - 2 ab + |b|^2, whose sides do not depend on the order.
    costs = -(guess.detach() @ truth.transpose(1, 2)).cpu().numpy()
    order = torch.stack([torch.from_numpy(linear_sum_assignment(cost)[1]) for cost in costs]).to(truth.device)
    return (guess - truth.gather(1, order[..., None].expand_as(truth))).square().mean()


def _copied(net: torch.nn.Module) -> Tensors:
    return {f"net/{name}": value.detach().clone() for name, value in net.named_parameters()}
