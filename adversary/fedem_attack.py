"""Against FedEM: who can tell its perturbation from the image takes it out of the guess, and has the true one."""

import torch
from torch import Tensor
from torch.nn import functional as F

from client_defenses import Memory
from client_defenses.fedem import FedEM
from fl_app.core.local import Step

TURNS = 3
"""How often the perturbation of a guess is taken out and found again; it settles after two on digits."""


def common_part(x_guesses: Tensor, rho: float, mean: Tensor | None = None) -> Tensor:
    """The perturbation (channels, height, width) of norm at most rho that guesses (n, channels, height, width) share.

    It is what their mean differs by from `mean`, the mean image that the attacker expects (say of public data of the same
    kind); without one, from the smoothed guesses, as a perturbation of signs is rough where images are smooth. Its error
    falls with the square root of n, from about the norm of an image's deviation: guesses of all batches between two draws
    of the perturbation count, and those of several elements of a batch with scope="client".
    """
    images = x_guesses.to(torch.promote_types(x_guesses.dtype, torch.float32))
    usual = smoothed(images).mean(0) if mean is None else mean.to(images)
    found = images.mean(0) - usual
    factor: Tensor = (rho / torch.linalg.vector_norm(found).clamp_min(1e-30)).clamp_max(1)
    return found * factor


def smoothed(images: Tensor) -> Tensor:
    """Means over the 3 x 3 pixels around each, fewer at the border; (n, channels, height, width)."""
    return F.avg_pool2d(images, 3, stride=1, padding=1, count_include_pad=False)


def remove_common(x_guesses: Tensor, rho: float, mean: Tensor | None = None) -> Tensor:
    """The guesses less the perturbation that they share, in [0, 1]; see `common_part`."""
    return (x_guesses - common_part(x_guesses, rho, mean).to(x_guesses)).clamp(0, 1)


def replayed(guess: Step, defense: FedEM, rng: torch.Generator) -> Tensor:
    """A guess at moved inputs, (examples, *shape), less the move that the defense makes at the round's weights.

    Nothing in Algorithm 1 is secret but the start of the perturbation, and a step alpha far above rho forgets it: so the
    defense is run on the guess, what it adds is subtracted, and again on what is left.
    """
    clean = guess.x
    for _ in range(TURNS):
        moved = defense.on_batch(guess._replace(x=clean), Memory({}, rng)).x
        clean = guess.x - (moved - clean)
    return clean.clamp(0, 1)
