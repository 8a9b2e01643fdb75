"""`cocktail_party`: a batch as independent sources behind the rows of a linear layer's gradient (Kariyappa et al. 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from adversary.base import Attack, AttackError, Guess
from adversary.exact.decompose import rank_of
from adversary.exact.layers import classes_of, first_linear, padded, pixels_into
from adversary.labels import as_gradient
from adversary.objectives import cosine
from adversary.priors import Weight, total_variation
from adversary.search.optimizers import Adam, AdamSteps, Count, Rate
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Observation, Task

GAUSSIAN = 0.374567
"""E log cosh of a standard normal number: what is far from it is no mixture."""


class _Mixture(NamedTuple):
    """Rows of a gradient: left (m, B) @ right (B, n); white (B, n): the rows of right, centred and uncorrelated."""

    left: Tensor
    right: Tensor
    whiten: Tensor
    white: Tensor
    bias: Tensor


@dataclass(frozen=True, kw_only=True)
class CocktailParty(Attack):
    """Cocktail Party Attack: unmixes a batch at the first linear layer, if that reads images, behind any activation.

    Independent component analysis finds the images up to sign and scale; these follow here from the bias's gradient, which the
    paper does not use. An approximation, and no proof: the loss is one minus the cosine of the updates.
    """

    iterations: Count = 1000
    lr: Rate = 0.01
    negentropy: Weight = 1.0
    """Weight of (E log cosh s - E log cosh of a normal number) squared, per source; the paper's code leaves it out."""
    tv: Weight = 3.0
    decorrelation: Weight = 0.03
    """Weight of mean(exp(12 |cos|) - 1) between sources; the paper has 1.47, but images are not independent (ours)."""
    sharpness: Rate = 12.0
    """The 12 in it."""

    def cost(self, examples: int, rule: LocalRule) -> float:
        """A tenth of a gradient per iteration and example."""
        return 0.1 * self.iterations * examples

    def shortened(self, iterations: int) -> "CocktailParty":
        """The same with so many iterations."""
        return CocktailParty(**{**self.__dict__, "iterations": iterations})

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Unmix all targets of the same rank at once."""
        like = next(iter(seen[0].params.values()))
        layer = first_linear(task.model, seen[0].update)
        pixels = pixels_into(task, seen[0].params, layer)
        if pixels is None:
            raise AttackError(f"the first linear layer, {layer}, reads features and no image: use spear or a search")
        mixtures = [_mixture(one, layer) for one in seen]
        unmixed: dict[int, Tensor] = {}
        for size in sorted({len(one.white) for one in mixtures}):
            members = [i for i, one in enumerate(mixtures) if len(one.white) == size]
            found = self._unmix(torch.stack([mixtures[i].white for i in members]), task)
            unmixed |= dict(zip(members, found, strict=True))
        answers = []
        for i, (one, mixture) in enumerate(zip(seen, mixtures, strict=True)):
            inputs, slopes = _scaled(mixture, unmixed[i])
            number = len(inputs)
            y = torch.zeros(one.num_examples, dtype=torch.int64, device=like.device)
            x = padded(task.space.clamp(pixels.image(inputs, task.space.shape)).to(like), one.num_examples)
            y[:number] = classes_of(task, one.params, layer, inputs.to(like), slopes.to(like))
            answers.append(Guess(x, y, cosine(local_update(task.model, one.params, x, y, one.rule), one.update)))
        return Guess.stacked(answers)

    def _unmix(self, white: Tensor, task: Task) -> Tensor:
        """Rows (targets, B, B) that make sources of white mixtures (targets, B, n)."""
        targets, size, _ = white.shape
        rows = torch.eye(size).expand(targets, size, size).clone()
        steps = AdamSteps(Adam(iterations=self.iterations, lr=self.lr))
        white = white.float().cpu()
        for _ in range(self.iterations if size > 1 else 0):
            free = rows.detach().requires_grad_()
            unit = F.normalize(free, dim=-1)
            sources = unit @ white
            images = sources.view(targets, 1, size, *task.space.shape)
            alike = (unit @ unit.transpose(1, 2) - torch.eye(size)).abs()
            entropy = (_log_cosh(sources).mean(-1) - GAUSSIAN).square().mean(-1)
            loss = self.decorrelation * (self.sharpness * alike).exp().sub(1).mean((1, 2))
            loss = loss + self.tv * total_variation(images)[:, 0] - self.negentropy * entropy
            (slope,) = torch.autograd.grad(loss.sum(), free)
            rows = steps.step({"x": free.detach()[:, None]}, {"x": slope[:, None]}, loss.detach()[:, None])["x"][:, 0]
        return F.normalize(rows, dim=-1)


def _log_cosh(x: Tensor) -> Tensor:
    return x.abs() + F.softplus(-2 * x.abs()) - 0.693147


def _mixture(seen: Observation, layer: str) -> _Mixture:
    gradient = as_gradient(seen)
    weight, bias = gradient[f"{layer}.weight"], gradient[f"{layer}.bias"].double()
    size = min(seen.num_examples, max(1, rank_of(weight, 10 * torch.finfo(weight.dtype).eps)))
    left, values, right = torch.linalg.svd(weight.double(), full_matrices=False)
    left, right = left[:, :size] * values[:size], right[:size]
    centred = right - right.mean(1, keepdim=True)
    spread, vectors = torch.linalg.eigh(centred @ centred.T / centred.shape[1])
    whiten = (vectors / spread.clamp_min(1e-12 * spread[-1]).sqrt()).T
    return _Mixture(left, right, whiten, whiten @ centred, bias)


def _scaled(mixture: _Mixture, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(inputs (B, n), slopes (B, m)) of unmixing rows; sign and scale are those that explain the bias's gradient."""
    back = rows.to(mixture.whiten) @ mixture.whiten
    slopes = mixture.left @ torch.linalg.pinv(back)
    scale = torch.linalg.lstsq(slopes, mixture.bias[:, None]).solution[:, 0]
    scale = torch.where(scale.abs() < 1e-12, 1e-12, scale)
    return (back @ mixture.right) / scale[:, None], (slopes * scale).T
