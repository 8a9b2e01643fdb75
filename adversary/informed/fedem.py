"""FedEM: an attacker that can tell its perturbation from the image takes it out of the reconstruction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from adversary.base import AttackError, Facts, Guess
from adversary.informed.expected import granted, parts_of
from adversary.informed.variant import Variant, with_observer
from adversary.search.observers import Observer
from client_defenses import Memory
from client_defenses.fedem import FedEM
from fl_app.core.local import Step
from fl_app.core.observation import Observation, Task

TURNS = 3
"""How often the perturbation of a reconstruction is taken out and found again; it settles after two on digits."""


@dataclass(frozen=True, kw_only=True)
class Replay(Observer):
    """Takes out of a reconstruction the perturbation that FedEM, if it was granted, would give it."""

    def clean(self, guess: Guess, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """The reconstructions, each less what the defense does to it at the round's weights."""
        known = [part for part in parts_of(granted(seen[0], "the observer 'replay'")) if isinstance(part, FedEM)]
        if not known or seen[0].rule.kind != "gradient":
            # What it did in earlier local steps cannot be told.
            raise AttackError("the observer 'replay' needs updates that are gradients, and fedem in the granted defense")
        steps = [Step(one.params, task.model, x, y) for x, y, one in zip(guess.x, guess.y, seen, strict=True)]
        clean = [replayed(step, known[0], stream) for step, stream in zip(steps, streams, strict=True)]
        return guess._replace(x=torch.stack(clean))


@dataclass(frozen=True, kw_only=True)
class Common(Observer):
    """Takes out of the reconstructions of a client the perturbation of norm at most rho that they share."""

    by_client: ClassVar[bool] = True
    rho: Annotated[float, Field(gt=0)]

    def clean(self, guess: Guess, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """The reconstructions less what those of a client share; a lone one shares nothing and stays."""
        clients = torch.tensor([one.client for one in seen])
        x = guess.x.clone()
        for client in clients.unique().tolist():
            own = guess.x[clients == client]
            if own.shape[0] * own.shape[1] > 1:
                x[clients == client] = remove_common(own.flatten(0, 1), self.rho).view_as(own)
        return guess._replace(x=x)


def variants(defense: FedEM, facts: Facts) -> list[Variant]:
    """Replays the defense on its reconstruction; or takes out what the reconstructions of a client share."""
    alone = facts.examples * facts.rounds < 2
    return [
        Variant(
            "replays the defense on its reconstruction and takes the perturbation out",
            lambda attack: with_observer(attack, Replay()),
            "replay",
            images=True,
        ),
        Variant(
            "takes out what the reconstructions of a client share",
            lambda attack: with_observer(attack, Common(rho=defense.rho_max)) if defense.rho_max else attack,
            "common",
            why_not="nothing that reconstructions share can be estimated from a single one" if alone else "",
            images=True,
        ),
    ]


def common_part(x: Tensor, rho: float, mean: Tensor | None = None) -> Tensor:
    """The perturbation (channels, height, width) of norm at most rho that reconstructions (n, *the same) share.

    It is what their mean differs by from `mean`, the mean image that the attacker expects (say of public data of the same
    kind); without one, from the smoothed reconstructions, as a perturbation of signs is rough where images are smooth. Its
    error falls with the square root of n, from about the norm of an image's deviation: those of all batches between two
    draws of the perturbation count, and those of several elements of a batch with scope="client".
    """
    images = x.to(torch.promote_types(x.dtype, torch.float32))
    usual = smoothed(images).mean(0) if mean is None else mean.to(images)
    found = images.mean(0) - usual
    factor: Tensor = (rho / torch.linalg.vector_norm(found).clamp_min(1e-30)).clamp_max(1)
    return found * factor


def smoothed(images: Tensor) -> Tensor:
    """Means over the 3 x 3 pixels around each, fewer at the border; (n, channels, height, width)."""
    return F.avg_pool2d(images, 3, stride=1, padding=1, count_include_pad=False)


def remove_common(x: Tensor, rho: float, mean: Tensor | None = None) -> Tensor:
    """The reconstructions less the perturbation that they share, in [0, 1]; see `common_part`."""
    return (x - common_part(x, rho, mean).to(x)).clamp(0, 1)


def replayed(guess: Step, defense: FedEM, rng: torch.Generator) -> Tensor:
    """A reconstruction of moved inputs, (examples, *shape), less the move that the defense makes at the round's weights.

    Nothing in Algorithm 1 is secret but the start of the perturbation, and a step alpha far above rho forgets it: so the
    defense is run on the reconstruction, what it adds is subtracted, and again on what is left.
    """
    clean = guess.x
    for _ in range(TURNS):
        moved = defense.on_batch(guess._replace(x=clean), Memory({}, rng)).x
        clean = guess.x - (moved - clean)
    return clean.clamp(0, 1)
